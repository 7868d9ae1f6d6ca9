-- The time in which a sandbox was suspended does not count as used.
DROP VIEW ended;
CREATE VIEW ended AS
	SELECT id, account, coalesce(max(0, (julianday(data->>'ended_at') - julianday(data->>'started_at')) * 86400 - coalesce(data->>'suspended_seconds', 0)), 0) AS seconds, coalesce(data->>'cost_usd', 0) AS cost
	FROM sandboxes WHERE live = 0 AND json_valid(data);
