"""The vocabulary: frozen dataclasses and StrEnums that every layer speaks. No rules, no I/O."""
