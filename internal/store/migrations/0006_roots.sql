-- The key for which a sign-in, a link or a client of OAuth acts, by way of any sign-ins between them.
ALTER TABLE keys ADD COLUMN root TEXT NOT NULL DEFAULT '';
UPDATE keys SET root = made_by WHERE kind IN ('sign-in', 'link', 'oauth');
UPDATE keys SET made_by = subject, subject = '' WHERE kind = 'oauth' AND subject LIKE 'sig\_%' ESCAPE '\';
