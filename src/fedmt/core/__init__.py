"""The foundation: errors, label spaces, losses and other pure functions that everything else is built on."""
