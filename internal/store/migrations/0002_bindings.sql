-- Where the values of a secret may go, as JSON of binding.Binding, and what stands for them in sandboxes, as a JSON map by
-- key. Both are '' for a secret that is not bound.
ALTER TABLE secrets ADD COLUMN binding TEXT NOT NULL DEFAULT '';
ALTER TABLE secrets ADD COLUMN placeholders TEXT NOT NULL DEFAULT '';
