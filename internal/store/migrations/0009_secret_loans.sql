CREATE TABLE secret_loans (
	borrower TEXT NOT NULL PRIMARY KEY, -- a sandbox's id
	account  TEXT NOT NULL,
	sealed   BLOB NOT NULL
) STRICT;
