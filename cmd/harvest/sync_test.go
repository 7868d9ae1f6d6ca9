package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/internal/s3server/s3test"
)

// A volume goes to S3 and comes back, to a bucket of one's own and to the server's.
// mission: 2.1, 2.6, 3.1, 9.3, D1, D2, D4
func TestVolumeSync(t *testing.T) {
	t.Parallel()
	url := s3test.Named(t, "files")
	h := newHost(t, "fake", nil)
	h.env.Setenv("HARVEST_S3_BUCKET", "files")
	h.env.Setenv("HARVEST_S3_ENDPOINT", url)
	h.env.Setenv("HARVEST_S3_PATH_STYLE", "true")
	tree := t.TempDir()
	for path, content := range map[string]string{"a/b.txt": "one", "c.txt": "two", "run.sh": "#!/bin/sh"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(tree, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, path), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.must("volume", "create", "data")
	for _, name := range []string{"a", "c.txt", "run.sh"} {
		h.must("volume", "cp", filepath.Join(tree, name), "data:/")
	}
	if _, stderr, code := h.run("volume", "sync", "data"); code == 0 || !strings.Contains(stderr, "secret") {
		t.Errorf("without credentials: %d, %s", code, stderr)
	}
	h.must("secret", "set", "aws", "AWS_ACCESS_KEY_ID="+s3test.AccessKey, "AWS_SECRET_ACCESS_KEY="+s3test.SecretKey, "AWS_REGION=us-east-1")
	synced := func(args ...string) api.Synced {
		t.Helper()
		var done api.Synced
		if err := json.Unmarshal([]byte(h.must(append(args, "-o", "json")...)), &done); err != nil {
			t.Fatal(err)
		}
		return done
	}
	if plan := synced("volume", "sync", "data", "--dry-run"); plan.Files != 3 || len(plan.Plan) != 4 || plan.Plan[0].Action != "upload" {
		t.Errorf("the plan is %+v", plan)
	}
	if done := synced("volume", "sync", "data"); done.Files != 3 || done.Failed != 0 || done.Place != "s3://files/personal/data/" {
		t.Errorf("up: %+v", done)
	}
	if done := synced("volume", "sync", "data"); done.Files != 0 || done.Skipped != 4 {
		t.Errorf("up again: %+v", done)
	}
	if out := h.must("volume", "sync", "data"); !strings.Contains(out, "s3://files/personal/data/") || !strings.Contains(out, "UNCHANGED") {
		t.Errorf("as a table: %s", out)
	}
	h.must("volume", "rm", "data:/c.txt")
	if done := synced("volume", "sync", "data", "--down"); done.Files != 1 {
		t.Errorf("down: %+v", done)
	}
	if out := h.must("volume", "cp", "data:/c.txt", "-"); !strings.Contains(out, "two") {
		t.Errorf("restored: %s", out)
	}
	// A bucket of one's own, and another volume with what is there.
	h.must("volume", "sync", "data", "s3://files/elsewhere")
	h.must("volume", "create", "copy")
	if done := synced("volume", "sync", "copy", "s3://files/elsewhere", "--down"); done.Files != 3 {
		t.Errorf("another volume: %+v", done)
	}
	h.must("volume", "rm", "copy:/a")
	if done := synced("volume", "sync", "copy", "s3://files/elsewhere", "--both"); done.Deleted == 0 {
		t.Errorf("both ways: %+v", done)
	}
	// Versions.
	first := synced("volume", "sync", "data", "--versioned")
	h.must("volume", "rm", "data:/c.txt")
	second := synced("volume", "sync", "data", "--versioned")
	if first.Version == "" || second.Version == "" || first.Version == second.Version {
		t.Errorf("versions %q and %q", first.Version, second.Version)
	}
	if out := h.must("volume", "versions", "data", "-o", "name"); strings.Fields(out)[0] != second.Version || len(strings.Fields(out)) != 2 {
		t.Errorf("versions: %s", out)
	}
	if done := synced("volume", "sync", "data", "--down", "--version", first.Version); done.Files != 1 || done.Version != first.Version {
		t.Errorf("the first version: %+v", done)
	}
	h.must("volume", "prune", "data", "--keep", "1")
	if out := h.must("volume", "versions", "data"); strings.Contains(out, first.Version) || !strings.Contains(out, "whole") {
		t.Errorf("after pruning: %s", out)
	}
	// What cannot be, and what to do.
	for args, want := range map[string]string{
		"volume sync data s3://nowhere/x":             "there is no bucket nowhere",
		"volume sync data http://x":                   "s3://BUCKET/PREFIX",
		"volume sync none":                            "none",
		"volume sync data --down --both":              "exclude",
		"volume sync data --conflicts odd --both":     "no policy",
		"volume sync data --version 5 --down":         "no version 5",
		"volume sync data --version x --down":         "no version",
		"volume sync data --versioned --both":         "up or down",
		"volume sync data --version 5":                "restored only",
		"volume sync data s3://files/x --secret none": "none",
		"volume sync data --secret other":             "a bucket of one's own",
		"volume versions data s3:/x":                  "s3://BUCKET/PREFIX",
		"volume prune data --keep 0":                  "at least one",
	} {
		if _, stderr, code := h.run(strings.Fields(args)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d, %s; want %q", args, code, stderr, want)
		}
	}
	if log := h.log(); strings.Contains(log, s3test.SecretKey) {
		t.Error("the secret key is in the log")
	}
}

// What is shown while a sync goes on: a bar once the total is known, in a terminal.
// mission: 2.6
func TestSyncBar(t *testing.T) {
	t.Parallel()
	stats := api.SyncStats{Files: 3, Bytes: 2 << 20, Rate: 1 << 20, Skipped: 4}
	const rest = "3 files, 2MiB, 1MiB/s; 4 unchanged, 0 failed"
	half, whole := stats, stats
	half.Seen, half.Total, whole.Seen, whole.Total = 512<<20, 1<<30, 1<<30, 1<<30
	for _, c := range []struct {
		stats api.SyncStats
		bar   bool
		want  string
	}{
		{stats, true, "harvest: data: " + rest},
		{half, true, "harvest: data: [==========          ] 50% of 1GiB, " + rest},
		{whole, true, "harvest: data: [====================] 100% of 1GiB, " + rest},
		{half, false, "harvest: data: 50% of 1GiB, " + rest},
	} {
		if got := soFar("data", c.stats, c.bar); got != c.want {
			t.Errorf("shown %q, want %q", got, c.want)
		}
	}
}
