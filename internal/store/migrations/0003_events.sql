CREATE TABLE events (
	stream TEXT    NOT NULL,
	id     INTEGER NOT NULL,
	type   TEXT    NOT NULL,
	at     INTEGER NOT NULL, -- Unix microseconds
	data   TEXT    NOT NULL, -- JSON
	PRIMARY KEY (stream, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX events_at ON events (at);

-- The highest id that a stream ever had, for when its events are pruned.
CREATE TABLE streams (
	stream TEXT    PRIMARY KEY,
	last   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
