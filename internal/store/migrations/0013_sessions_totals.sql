-- Sessions keep their records. What they have used is summed up from this index alone. A record that is damaged is in no sum, and in nobody's way.
DROP INDEX IF EXISTS sessions_totals;
CREATE INDEX sessions_totals ON sessions (account, json_valid(record),
	iif(json_valid(record), record->>'$.turns', NULL),
	iif(json_valid(record), record->>'$.usage.input_tokens', NULL),
	iif(json_valid(record), record->>'$.usage.output_tokens', NULL),
	iif(json_valid(record), record->>'$.usage.cache_read_tokens', NULL),
	iif(json_valid(record), record->>'$.usage.cache_write_tokens', NULL),
	iif(json_valid(record), record->>'$.usage.cost_usd', NULL));
