"""The fixed texts of the prefix. There is no tokenizer: each text is a range of reserved ids.

Ids below `config.RESERVED_IDS` are reserved for these texts and for padding.
"""

STATE = range(2, 4)  # "State: "
STATE_END = range(4, 5)  # ":\n"
STATE_COMMA = range(5, 6)  # ", " instead, when an optional text follows
OPTIONAL_END = range(6, 7)  # ";\n"
SUBGOAL = range(7, 9)  # "Subgoal: "
SUBGOAL_END = range(9, 10)  # ", "
ACTION = range(10, 12)  # "Action: "
