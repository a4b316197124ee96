"""Words and columns: what a report says, as tables, charts and sentences without markup."""
