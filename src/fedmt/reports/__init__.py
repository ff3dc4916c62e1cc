"""Reports: what runs measured, as one page that opens from disk or is served live."""
