"""What a caller may have: profiles, limits, grades, mounts. A spec goes in, an effective spec or a refusal out."""
