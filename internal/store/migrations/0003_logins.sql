-- What is known of the login that a secret is, as JSON of grant.State. '' for a secret that is not one.
ALTER TABLE secrets ADD COLUMN login TEXT NOT NULL DEFAULT '';
