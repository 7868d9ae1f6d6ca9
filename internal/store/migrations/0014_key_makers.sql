-- With which key or sign-in a key, sign-in or link was made, and the latest end of all that it makes; 0: none.
ALTER TABLE keys ADD COLUMN made_by TEXT NOT NULL DEFAULT '';
ALTER TABLE keys ADD COLUMN until INTEGER NOT NULL DEFAULT 0;
-- What a key makes did not end with it before. From now on it does.
UPDATE keys SET until = expires WHERE kind = 'key';
