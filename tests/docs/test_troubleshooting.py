"""The messages that docs/troubleshooting.md explains are messages that the code prints."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_quoted_messages_are_in_the_code() -> None:
    source = "\n".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)  # joins a message that spans several lines of code
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    quoted = re.findall(r'^### "(.+)"$', page, re.M)
    assert len(quoted) > 8
    missing = [message for message in quoted if message not in joined]
    assert not missing, f"the code prints no message with {missing}"
