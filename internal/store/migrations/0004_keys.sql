CREATE TABLE keys (
	id        TEXT    PRIMARY KEY,
	kind      TEXT    NOT NULL, -- 'key' or 'sign-in'
	account   TEXT    NOT NULL,
	name      TEXT    NOT NULL,
	role      TEXT    NOT NULL,
	scopes    TEXT    NOT NULL, -- separated by spaces
	hash      TEXT    NOT NULL UNIQUE, -- of the secret
	created   INTEGER NOT NULL, -- Unix microseconds, as below
	expires   INTEGER NOT NULL, -- 0: never
	last_used INTEGER NOT NULL  -- 0: not yet
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX keys_name ON keys (account, kind, name) WHERE name <> '';

-- Answers to requests with an Idempotency-Key.
CREATE TABLE replays (
	account TEXT    NOT NULL,
	key     TEXT    NOT NULL,
	request TEXT    NOT NULL, -- hash of method, path and body
	created INTEGER NOT NULL, -- Unix seconds
	status  INTEGER NOT NULL, -- 0 until there is an answer
	type    TEXT    NOT NULL,
	body    BLOB    NOT NULL,
	PRIMARY KEY (account, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX replays_created ON replays (created);
