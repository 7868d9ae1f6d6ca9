package s3

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// TestVolumeSync checks that a volume goes to S3 and comes back, with a bucket of the account and with the server's.
// mission: 2.1, 2.6, 3.1, 8.5, 9.3, D1, D2, D4
func TestVolumeSync(t *testing.T) {
	t.Parallel()
	url := s3test.Named(t, "files")
	h := host.New(t, "fake", nil)
	h.Env.Setenv("HARVEST_S3_BUCKET", "files")
	h.Env.Setenv("HARVEST_S3_ENDPOINT", url)
	h.Env.Setenv("HARVEST_S3_PATH_STYLE", "true")
	tree := t.TempDir()
	for path, content := range map[string]string{"a/b.txt": "one", "c.txt": "two", "run.sh": "#!/bin/sh"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(tree, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, path), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.Must("volume", "create", "data")
	for _, name := range []string{"a", "c.txt", "run.sh"} {
		h.Must("volume", "cp", filepath.Join(tree, name), "data:/")
	}
	if _, stderr, code := h.Run("volume", "sync", "data"); code == 0 || !strings.Contains(stderr, "secret") {
		t.Errorf("without credentials: %d, %s", code, stderr)
	}
	h.Must("secret", "set", "aws", "AWS_ACCESS_KEY_ID="+s3test.AccessKey, "AWS_SECRET_ACCESS_KEY="+s3test.SecretKey,
		"AWS_REGION=us-east-1")
	synced := func(args ...string) api.Synced {
		t.Helper()
		var done api.Synced
		if err := json.Unmarshal([]byte(h.Must(append(args, "-o", "json")...)), &done); err != nil {
			t.Fatal(err)
		}
		return done
	}
	if plan := synced("volume", "sync", "data", "--dry-run"); plan.Files != 3 || len(plan.Plan) != 4 ||
		plan.Plan[0].Action != "upload" {
		t.Errorf("the plan is %+v", plan)
	}
	if done := synced("volume", "sync", "data"); done.Files != 3 || done.Failed != 0 ||
		done.Bytes != int64(len("one"+"two"+"#!/bin/sh")) || done.Duration <= 0 || done.Rate <= 0 ||
		done.Place != "s3://files/personal/data/" {
		t.Errorf("up: %+v", done)
	}
	if done := synced("volume", "sync", "data"); done.Files != 0 || done.Skipped != 4 {
		t.Errorf("up again: %+v", done)
	}
	if out := h.Must("volume", "sync", "data"); !strings.Contains(out, "s3://files/personal/data/") ||
		!strings.Contains(out, "UNCHANGED") {
		t.Errorf("as a table: %s", out)
	}
	h.Must("volume", "rm", "data:/c.txt")
	if done := synced("volume", "sync", "data", "--down"); done.Files != 1 {
		t.Errorf("down: %+v", done)
	}
	if out := h.Must("volume", "cp", "data:/c.txt", "-"); !strings.Contains(out, "two") {
		t.Errorf("restored: %s", out)
	}
	// The volume's own bucket, and another volume with the same content.
	h.Must("volume", "sync", "data", "s3://files/elsewhere")
	h.Must("volume", "create", "copy")
	if done := synced("volume", "sync", "copy", "s3://files/elsewhere", "--down"); done.Files != 3 {
		t.Errorf("another volume: %+v", done)
	}
	h.Must("volume", "rm", "copy:/a")
	if done := synced("volume", "sync", "copy", "s3://files/elsewhere", "--both"); done.Deleted == 0 {
		t.Errorf("both ways: %+v", done)
	}
	// Versions.
	first := synced("volume", "sync", "data", "--versioned")
	h.Must("volume", "rm", "data:/c.txt")
	second := synced("volume", "sync", "data", "--versioned")
	if first.Version == "" || second.Version == "" || first.Version == second.Version {
		t.Errorf("versions %q and %q", first.Version, second.Version)
	}
	if out := h.Must("volume", "versions", "data", "-o", "name"); strings.Fields(out)[0] != second.Version ||
		len(strings.Fields(out)) != 2 {
		t.Errorf("versions: %s", out)
	}
	if done := synced("volume", "sync", "data", "--down", "--version", first.Version); done.Files != 1 ||
		done.Version != first.Version {
		t.Errorf("the first version: %+v", done)
	}
	h.Must("volume", "prune", "data", "--keep", "1")
	if out := h.Must("volume", "versions", "data"); strings.Contains(out, first.Version) ||
		!strings.Contains(out, "whole") {
		t.Errorf("after pruning: %s", out)
	}
	// Invalid requests, and their remedies.
	for args, want := range map[string]string{
		"volume sync data s3://nowhere/x":             "there is no bucket nowhere",
		"volume sync data http://x":                   "s3://BUCKET/PREFIX",
		"volume sync none":                            "none",
		"volume sync data --down --both":              "exclude",
		"volume sync data --conflicts odd --both":     "invalid policy",
		"volume sync data --version 5 --down":         "no version 5",
		"volume sync data --version x --down":         `invalid version "x"`,
		"volume sync data --versioned --both":         "up or down",
		"volume sync data --version 5":                "add --down",
		"volume sync data s3://files/x --secret none": "none",
		"volume sync data --secret other":             "a bucket of one's own",
		"volume versions data s3:/x":                  "s3://BUCKET/PREFIX",
		"volume prune data --keep 0":                  "at least one",
	} {
		if _, stderr, code := h.Run(strings.Fields(args)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d, %s; want %q", args, code, stderr, want)
		}
	}
	if log := h.Log(); strings.Contains(log, s3test.SecretKey) {
		t.Error("the secret key is in the log")
	}
}

// twoVolumes is a server with the volumes one and two, which have a file of the same size and time and of different
// content, and a bucket with that of volume one below work. put writes a file of that time into a volume.
func twoVolumes(t *testing.T) (h *host.Host, s3 *host.S3, put func(volume, name, content string)) {
	t.Helper()
	s3 = host.NewS3(t)
	h = host.New(t, "fake", nil)
	h.Env.Setenv("HARVEST_S3_ENDPOINT", "http://"+s3.Address)
	h.Env.Setenv("HARVEST_S3_PATH_STYLE", "true")
	h.Must("secret", "set", "aws", "AWS_ACCESS_KEY_ID="+s3test.AccessKey, "AWS_SECRET_ACCESS_KEY="+s3test.SecretKey,
		"AWS_REGION=us-east-1")
	put = func(volume, name, content string) {
		t.Helper()
		dir, top := t.TempDir(), strings.Split(name, "/")[0]
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if at := time.Unix(1700000000, 0); os.Chtimes(file, at, at) != nil {
			t.Fatal("no file has that time")
		}
		h.Must("volume", "cp", filepath.Join(dir, top), volume+":/")
	}
	for volume, content := range map[string]string{"one": "of one", "two": "of two"} {
		h.Must("volume", "create", volume)
		put(volume, "a.txt", content)
	}
	h.Must("volume", "sync", "one", "s3://"+s3.Bucket+"/work")
	return h, s3, put
}

// TestVolumeSyncFlags checks that each flag works as its help describes.
// mission: 2.1, 3.1, 3.3, D2
func TestVolumeSyncFlags(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h, s3, put := twoVolumes(t)
	sync := func(volume string, flags ...string) (done api.Synced) {
		t.Helper()
		args := append([]string{"volume", "sync", volume, "s3://" + s3.Bucket + "/work", "-o", "json"}, flags...)
		if err := json.Unmarshal([]byte(h.Must(args...)), &done); err != nil {
			t.Fatal(err)
		}
		return done
	}
	in := func(volume, name string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "file")
		h.Must("volume", "cp", volume+":/"+name, file)
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	// Files that seem equal are read on request.
	if done := sync("two", "--down"); done.Files != 0 || in("two", "a.txt") != "of two" {
		t.Errorf("without --contents: %+v", done)
	}
	if done := sync("two", "--down", "--contents"); done.Files != 1 || in("two", "a.txt") != "of one" {
		t.Errorf("with --contents: %+v, and %q", done, in("two", "a.txt"))
	}
	// Objects of other programs are seen on request.
	s3.Put("work/others.txt", "of others")
	if done := sync("one", "--down"); done.Files != 0 {
		t.Errorf("without --list: %+v", done)
	}
	if done := sync("one", "--down", "--list"); done.Files != 1 || in("one", "others.txt") != "of others" {
		t.Errorf("with --list: %+v", done)
	}
	// Only files below a path.
	put("one", "in/b.txt", "b")
	put("one", "c.txt", "c")
	if done := sync("one", "--path", "in"); done.Files != 1 || s3.Get("work/in/b.txt") != "b" ||
		s3.Get("work/c.txt") != "" {
		t.Errorf("with --path: %+v, and %q beside it", done, s3.Get("work/c.txt"))
	}
	// Objects that the volume no longer has are deleted only on request.
	h.Must("volume", "rm", "one:/in")
	if done := sync("one"); done.Files != 1 || done.Deleted != 0 || s3.Get("work/in/b.txt") != "b" {
		t.Errorf("without --mirror: %+v", done)
	}
	if done := sync("one", "--mirror"); done.Deleted == 0 || s3.Get("work/in/b.txt") != "" ||
		s3.Get("work/c.txt") != "c" {
		t.Errorf("with --mirror: %+v, and the bucket still has %q", done, s3.Get("work/in/b.txt"))
	}
	// Flags that have no meaning together are errors.
	for _, c := range []struct {
		flags []string
		says  string
	}{
		{[]string{"--version", "latest"}, "--down"},
		{[]string{"--both", "--mirror"}, "choose mirror or both"},
		{[]string{"--down", "--conflicts", "local"}, "leave conflicts out"},
	} {
		args := append([]string{"volume", "sync", "one", "s3://" + s3.Bucket + "/versions"}, c.flags...)
		if _, stderr, code := h.Run(args...); code != 2 || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit code %d, %s", c.flags, code, stderr)
		}
	}
	// Changes on both sides.
	sync("two", "--both")
	put("one", "c.txt", "a change")
	sync("one")
	put("two", "c.txt", "another change")
	if done := sync("two", "--both", "--conflicts", "remote"); done.Conflicts != 1 ||
		in("two", "c.txt") != "a change" || s3.Get("work/c.txt") != "a change" {
		t.Errorf("with --conflicts remote: %+v, the volume has %q and the bucket %q", done, in("two", "c.txt"),
			s3.Get("work/c.txt"))
	}
}

// TestRefusedSyncNamesConflicts checks that a sync that the guard refuses names the conflicts that it resolved before,
// also with --quiet: no later sync reports them.
// mission: 2.6, D1
func TestRefusedSyncNamesConflicts(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h, s3, put := twoVolumes(t)
	place := "s3://" + s3.Bucket + "/guarded"
	const many = 30
	names := make([]string, many)
	for i := range many {
		names[i] = fmt.Sprintf("f%02d", i)
		put("one", names[i], names[i])
	}
	put("one", "edited", "old")
	h.Must("volume", "sync", "one", place, "--both")
	h.Must("volume", "sync", "two", place, "--both")
	put("one", "edited", "by one")
	h.Must("volume", "sync", "one", place, "--both")
	put("two", "edited", "by two")
	for _, name := range names {
		h.Must("volume", "rm", "two:/"+name)
	}
	_, stderr, code := h.Run("volume", "sync", "two", place, "--both", "--quiet")
	if code != 5 || !strings.Contains(stderr, "deleted none") ||
		!strings.Contains(stderr, "edited: changed on both sides: both are kept, the bucket's as edited.conflict-") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// TestVolumeSyncOverHTTP checks that a sync over HTTP answers with statistics, and as events first with its progress,
// and that the client supports both.
// mission: 2.6
func TestVolumeSyncOverHTTP(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h, s3, _ := twoVolumes(t)
	post := func(prefix, accept string) io.ReadCloser {
		t.Helper()
		path := "http://harvest" + strings.Replace(api.VolumeSync, "{name}", "one", 1)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, path,
			strings.NewReader(`{"direction":"up","bucket":"`+s3.Bucket+`","prefix":"`+prefix+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		resp, err := h.OverSocket().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || kind != accept {
			t.Errorf("%s, %s", resp.Status, kind)
		}
		return resp.Body
	}
	whole := func(prefix string, done api.Synced) {
		t.Helper()
		if done.Volume != "one" || done.Direction != "up" || done.Files != 1 || done.Bytes != int64(len("of one")) ||
			done.Duration <= 0 || done.Rate <= 0 || done.Failed != 0 ||
			done.Place != "s3://"+s3.Bucket+"/"+prefix+"/" {
			t.Errorf("%s: %+v", prefix, done)
		}
	}
	body := post("at-once", api.TypeJSON)
	var done api.Synced
	if err := json.NewDecoder(body).Decode(&done); err != nil {
		t.Fatal(err)
	}
	body.Close()
	whole("at-once", done)
	body = post("as-events", api.TypeEvents)
	lines, names, last := bufio.NewScanner(body), []string(nil), host.Sent{}
	for e, ok := host.NextSent(lines); ok; e, ok = host.NextSent(lines) {
		names, last = append(names, e.Name), e
		var so api.SyncStats
		if err := json.Unmarshal([]byte(e.Data), &so); err != nil || so.Duration <= 0 {
			t.Errorf("%s is %s, %v", e.Name, e.Data, err)
		}
	}
	body.Close()
	if n := len(names); n < 2 || slices.Index(names, api.EventSynced) != n-1 ||
		slices.ContainsFunc(names[:n-1], func(name string) bool { return name != api.EventSyncing }) {
		t.Fatalf("the events are %q", names)
	}
	done = api.Synced{}
	if err := json.Unmarshal([]byte(last.Data), &done); err != nil {
		t.Fatal(err)
	}
	whole("as-events", done)
	c := client.New(h.Data)
	defer c.Close()
	var told []api.SyncStats
	done, err := c.SyncVolume(t.Context(), "one",
		api.VolumeSyncRequest{Direction: "up", Place: api.Place{Bucket: s3.Bucket, Prefix: "by-the-client"}},
		func(so api.SyncStats) { told = append(told, so) })
	if err != nil {
		t.Fatal(err)
	}
	whole("by-the-client", done)
	if n := len(told); n == 0 || told[n-1].Files != 1 || told[n-1].Bytes != done.Bytes {
		t.Errorf("told so far: %+v", told)
	}
}
