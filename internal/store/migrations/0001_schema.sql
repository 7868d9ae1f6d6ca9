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
	last_used INTEGER NOT NULL, -- 0: not yet
	subject   TEXT    NOT NULL, -- what it is about beside its account: who signed in, or which port of which sandbox a link leads to
	made_by   TEXT    NOT NULL, -- the key or sign-in with which it was made
	until     INTEGER NOT NULL  -- the latest end of all that it makes; 0: none
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

CREATE TABLE schedules (
	account TEXT NOT NULL,
	name    TEXT NOT NULL,
	data    TEXT NOT NULL, -- the whole job as JSON
	PRIMARY KEY (account, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
	id      TEXT    PRIMARY KEY, -- newer ones sort behind older ones
	account TEXT    NOT NULL,
	job     TEXT    NOT NULL,
	open    INTEGER NOT NULL, -- 1 while it runs or waits to be tried again
	data    TEXT    NOT NULL  -- the whole run as JSON
) STRICT, WITHOUT ROWID;

CREATE INDEX runs_job ON runs (account, job, id);
CREATE INDEX runs_open ON runs (id) WHERE open = 1;

CREATE TABLE sessions (
	id      TEXT    PRIMARY KEY,
	account TEXT    NOT NULL,
	live    INTEGER NOT NULL, -- 1 until it has ended
	record  TEXT    NOT NULL, -- JSON
	place   TEXT    NOT NULL  -- of lists: the ID, but later for a session that was made ahead and then taken
) STRICT, WITHOUT ROWID;

-- Sessions that nobody has taken have the account ''.
CREATE INDEX sessions_account ON sessions (account, place);
CREATE INDEX sessions_place ON sessions (place) WHERE live;

-- Sessions keep their records. What they have used is summed up from this index alone. A record that is damaged is in no sum, and in nobody's way.
CREATE INDEX sessions_totals ON sessions (account, json_valid(record),
	iif(json_valid(record), record->>'$.turns', NULL),
	iif(json_valid(record), record->>'$.usage.input_tokens', NULL),
	iif(json_valid(record), record->>'$.usage.output_tokens', NULL),
	iif(json_valid(record), record->>'$.usage.cache_read_tokens', NULL),
	iif(json_valid(record), record->>'$.usage.cache_write_tokens', NULL),
	iif(json_valid(record), record->>'$.usage.cost_usd', NULL));

CREATE TABLE messages (
	id      TEXT PRIMARY KEY,
	session TEXT NOT NULL,
	record  TEXT NOT NULL -- JSON
) STRICT, WITHOUT ROWID;

CREATE INDEX messages_session ON messages (session, id);

CREATE TABLE repos (
	id      TEXT PRIMARY KEY,
	account TEXT NOT NULL,
	name    TEXT NOT NULL,
	record  TEXT NOT NULL, -- JSON
	UNIQUE (account, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE repo_builds (
	id     TEXT PRIMARY KEY,
	repo   TEXT NOT NULL,
	record TEXT NOT NULL -- JSON
) STRICT, WITHOUT ROWID;

CREATE INDEX repo_builds_repo ON repo_builds (repo, id);

CREATE TABLE secret_loans (
	borrower TEXT NOT NULL PRIMARY KEY, -- a sandbox's id
	account  TEXT NOT NULL,
	sealed   BLOB NOT NULL
) STRICT;

CREATE TABLE unsent (
	sandbox TEXT PRIMARY KEY,
	account TEXT NOT NULL,
	data    TEXT NOT NULL -- the whole record as JSON: what has to be sent to S3
) STRICT, WITHOUT ROWID;

CREATE TABLE usage (
	id   TEXT PRIMARY KEY, -- of the sandbox
	data TEXT NOT NULL     -- samples of what it has used, as JSON
) STRICT, WITHOUT ROWID;

CREATE TRIGGER usage_of_deleted AFTER DELETE ON sandboxes BEGIN
	DELETE FROM usage WHERE id = OLD.id;
END;

-- What the sandboxes of each account have used that have ended. It outlives their records.
CREATE TABLE totals (
	account   TEXT    PRIMARY KEY,
	sandboxes INTEGER NOT NULL,
	seconds   REAL    NOT NULL, -- from when they were ready to their end
	cost      REAL    NOT NULL  -- USD
) STRICT, WITHOUT ROWID;

CREATE VIEW ended AS
	SELECT id, account, coalesce(max(0, (julianday(data->>'ended_at') - julianday(data->>'started_at')) * 86400), 0) AS seconds, coalesce(data->>'cost_usd', 0) AS cost
	FROM sandboxes WHERE live = 0 AND json_valid(data);

CREATE TRIGGER totals_of_new AFTER INSERT ON sandboxes WHEN NEW.live = 0 BEGIN
	INSERT INTO totals SELECT account, 1, seconds, cost FROM ended WHERE id = NEW.id
		ON CONFLICT (account) DO UPDATE SET sandboxes = sandboxes + 1, seconds = seconds + excluded.seconds, cost = cost + excluded.cost;
END;

CREATE TRIGGER totals_of_ended AFTER UPDATE ON sandboxes WHEN OLD.live = 1 AND NEW.live = 0 BEGIN
	INSERT INTO totals SELECT account, 1, seconds, cost FROM ended WHERE id = NEW.id
		ON CONFLICT (account) DO UPDATE SET sandboxes = sandboxes + 1, seconds = seconds + excluded.seconds, cost = cost + excluded.cost;
END;

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

CREATE TABLE modal_records (
	row     INTEGER PRIMARY KEY,
	kind    TEXT NOT NULL,
	account TEXT NOT NULL,
	id      TEXT NOT NULL,
	number  INTEGER NOT NULL,
	data    BLOB NOT NULL,
	UNIQUE (kind, account, id, number)
) STRICT;
