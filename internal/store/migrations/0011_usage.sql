CREATE TABLE usage (
	id   TEXT PRIMARY KEY, -- of the sandbox
	data TEXT NOT NULL     -- samples of what it has used, as JSON
) STRICT, WITHOUT ROWID;

CREATE TRIGGER usage_of_deleted AFTER DELETE ON sandboxes BEGIN
	DELETE FROM usage WHERE id = OLD.id;
END;
