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
