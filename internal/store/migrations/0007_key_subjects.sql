-- What a key is about beside its account: who signed in, or which port of which sandbox a link leads to.
ALTER TABLE keys ADD COLUMN subject TEXT NOT NULL DEFAULT '';
