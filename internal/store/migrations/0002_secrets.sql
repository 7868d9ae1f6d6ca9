CREATE TABLE secrets (
	account    TEXT    NOT NULL,
	name       TEXT    NOT NULL,
	keys       TEXT    NOT NULL, -- a JSON list
	sealed     BLOB    NOT NULL,
	created_at INTEGER NOT NULL, -- Unix microseconds, as all times here
	updated_at INTEGER NOT NULL,
	used_at    INTEGER NOT NULL, -- 0 if never
	PRIMARY KEY (account, name)
) STRICT;
