-- Lists of sessions are in the order of place: the ID, but later for a session that was made ahead and then taken.
-- Sessions that nobody has taken have the account ''.
ALTER TABLE sessions ADD COLUMN place TEXT NOT NULL DEFAULT '';
UPDATE sessions SET place = id;
DROP INDEX sessions_account;
CREATE INDEX sessions_account ON sessions (account, place);
CREATE INDEX sessions_place ON sessions (place) WHERE live;
DROP INDEX sessions_live;
