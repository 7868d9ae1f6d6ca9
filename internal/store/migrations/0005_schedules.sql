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
