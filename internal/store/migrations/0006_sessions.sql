CREATE TABLE sessions (
	id      TEXT    PRIMARY KEY,
	account TEXT    NOT NULL,
	live    INTEGER NOT NULL, -- 1 until it has ended
	record  TEXT    NOT NULL  -- JSON
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_account ON sessions (account, id);
CREATE INDEX sessions_live ON sessions (id) WHERE live;

CREATE TABLE messages (
	id      TEXT PRIMARY KEY,
	session TEXT NOT NULL,
	record  TEXT NOT NULL -- JSON
) STRICT, WITHOUT ROWID;

CREATE INDEX messages_session ON messages (session, id);
