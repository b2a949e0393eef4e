"""The skill for coding agents: `SKILL.md` and the pages that it names."""
