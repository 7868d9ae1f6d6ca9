CREATE TABLE unsent (
	sandbox TEXT PRIMARY KEY,
	account TEXT NOT NULL,
	data    TEXT NOT NULL -- the whole record as JSON: what has to be sent to S3
) STRICT, WITHOUT ROWID;
