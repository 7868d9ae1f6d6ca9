-- What waits for a person, by account; data is JSON of inbox.Item. due has the bits of the receivers that have yet to get
-- the item.
CREATE TABLE inbox (
	account TEXT NOT NULL,
	number INTEGER NOT NULL,
	session TEXT NOT NULL, -- '' for a login
	key TEXT NOT NULL,
	waiting INTEGER NOT NULL,
	answerable INTEGER NOT NULL,
	due INTEGER NOT NULL,
	data TEXT NOT NULL,
	PRIMARY KEY (account, number)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX inbox_key ON inbox (account, session, key);
CREATE INDEX inbox_waiting ON inbox (account, session) WHERE waiting = 1;
CREATE INDEX inbox_due ON inbox (due) WHERE due > 0;

-- The last number of each account. Numbers are not used again.
CREATE TABLE inbox_numbers (account TEXT PRIMARY KEY, last INTEGER NOT NULL) STRICT, WITHOUT ROWID;
