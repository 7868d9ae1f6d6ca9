-- What the sandboxes of each account have used that have ended. It outlives their records.
CREATE TABLE totals (
	account   TEXT    PRIMARY KEY,
	sandboxes INTEGER NOT NULL,
	seconds   REAL    NOT NULL, -- from when they were ready to their end
	cost      REAL    NOT NULL  -- USD
) STRICT, WITHOUT ROWID;

CREATE VIEW ended AS
	SELECT id, account, coalesce(max(0, (julianday(data->>'ended_at') - julianday(data->>'started_at')) * 86400), 0) AS seconds, coalesce(data->>'cost_usd', 0) AS cost
	FROM sandboxes WHERE live = 0 AND json_valid(data);

INSERT INTO totals SELECT account, count(*), sum(seconds), sum(cost) FROM ended GROUP BY account;

CREATE TRIGGER totals_of_new AFTER INSERT ON sandboxes WHEN NEW.live = 0 BEGIN
	INSERT INTO totals SELECT account, 1, seconds, cost FROM ended WHERE id = NEW.id
		ON CONFLICT (account) DO UPDATE SET sandboxes = sandboxes + 1, seconds = seconds + excluded.seconds, cost = cost + excluded.cost;
END;

CREATE TRIGGER totals_of_ended AFTER UPDATE ON sandboxes WHEN OLD.live = 1 AND NEW.live = 0 BEGIN
	INSERT INTO totals SELECT account, 1, seconds, cost FROM ended WHERE id = NEW.id
		ON CONFLICT (account) DO UPDATE SET sandboxes = sandboxes + 1, seconds = seconds + excluded.seconds, cost = cost + excluded.cost;
END;

-- The index of sessions that was made here failed where a record was damaged. 0013 makes it, also where it was made here.
