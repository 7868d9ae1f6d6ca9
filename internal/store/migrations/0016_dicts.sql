CREATE TABLE dicts (
	number      INTEGER PRIMARY KEY,
	account     TEXT NOT NULL,
	id          TEXT NOT NULL,
	environment TEXT NOT NULL,
	name        TEXT NOT NULL, -- '' for one that ends with its client
	created_at  INTEGER NOT NULL,
	heard_at    INTEGER NOT NULL,
	bytes       INTEGER NOT NULL DEFAULT 0, -- of all entries
	UNIQUE (account, id)
) STRICT;
CREATE TABLE dict_entries (
	dict    INTEGER NOT NULL,
	key     BLOB NOT NULL,
	value   BLOB NOT NULL,
	used_at INTEGER NOT NULL,
	PRIMARY KEY (dict, key)
) STRICT;
CREATE INDEX dict_entries_used ON dict_entries (used_at);
