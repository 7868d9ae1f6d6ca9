-- The columns beside data are what queries look at; data is the whole record as JSON.
CREATE TABLE sandboxes (
	id       TEXT    PRIMARY KEY,
	account  TEXT    NOT NULL,
	name     TEXT    NOT NULL,
	status   TEXT    NOT NULL,
	live     INTEGER NOT NULL, -- 1 until it has ended
	ended_at INTEGER NOT NULL, -- Unix milliseconds, 0 until it has ended
	data     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (account, name) WHERE live = 1 AND name <> '';
CREATE INDEX sandboxes_account ON sandboxes (account, id);
CREATE INDEX sandboxes_live ON sandboxes (id) WHERE live = 1;
CREATE INDEX sandboxes_ended ON sandboxes (ended_at) WHERE live = 0;
