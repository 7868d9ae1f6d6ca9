CREATE TABLE modal_records (
	row     INTEGER PRIMARY KEY,
	kind    TEXT NOT NULL,
	account TEXT NOT NULL,
	id      TEXT NOT NULL,
	number  INTEGER NOT NULL,
	data    BLOB NOT NULL,
	UNIQUE (kind, account, id, number)
) STRICT;
