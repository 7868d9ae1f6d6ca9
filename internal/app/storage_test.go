package app

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
	s3mount "github.com/RelevanceAI/harvest/internal/s3/mount"
	s3sync "github.com/RelevanceAI/harvest/internal/s3/volsync"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// wantDrafts compares events with their data as JSON, in the streams of the sandbox sbx_1 and of its account acme.
func wantDrafts(t *testing.T, drafts []event.Draft, kind, data string) {
	t.Helper()
	var streams []string
	var want any
	if err := json.Unmarshal([]byte(data), &want); err != nil {
		t.Fatal(err)
	}
	for _, d := range drafts {
		streams = append(streams, d.Stream)
		text, err := json.Marshal(d.Data)
		if err != nil {
			t.Fatal(err)
		}
		var got any
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" || d.Type != kind {
			t.Errorf("%s of %s, want %s (-want +got):\n%s", d.Type, d.Stream, kind, diff)
		}
	}
	if diff := cmp.Diff([]string{"sbx_1", event.AccountStream("acme")}, streams); diff != "" {
		t.Errorf("the streams (-want +got):\n%s", diff)
	}
}

// TestSyncDrafts checks that the event of a sync has its failures, and their reasons. Of many failed files it names
// only the first.
// mission: 2.6, 2.8, 5.4
func TestSyncDrafts(t *testing.T) {
	t.Parallel()
	told := storage.Told{
		Job: storage.Job{Sandbox: "sbx_1", Account: "acme", Volume: "data",
			Place: places.Place{Bucket: "files", Prefix: "work", Secret: "aws"}}, Direction: plan.Up,
		Result: storage.Result{Place: "s3://files/data/", Stats: s3sync.Stats{Files: 3, Bytes: 40, Updated: 2,
			Skipped: 5, Failed: 1, Duration: 1500 * time.Microsecond,
			Failures: []s3sync.Failure{{Path: "pipe", Reason: "a FIFO", Remedy: "remove it"}}}},
	}
	wantDrafts(t, syncDrafts(told), "volume.synced",
		`{"sandbox_id":"sbx_1","volume":"data","place":"s3://files/data/","direction":"up","files":3,"bytes":40,"updated":2,"skipped":5,
		"failed":1,"duration_ms":1.5,"failures":[{"path":"pipe","reason":"a FIFO","remedy":"remove it"}]}`)
	told.Direction, told.Result = plan.Down, storage.Result{}
	told.Err = errors.Remedy(errors.Newf(errors.Unavailable, "S3 is away"), "wait")
	told.Retry = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	wantDrafts(t, syncDrafts(told), "volume.sync_failed",
		`{"sandbox_id":"sbx_1","volume":"data","direction":"down","files":0,"bytes":0,"updated":0,"skipped":0,"failed":0,"duration_ms":0,
		"reason":"S3 is away","remedy":"wait","retry_at":"2026-01-02T03:04:05Z"}`)
	told.Err = errors.Errorf("open /var/lib/x")
	if got := syncDrafts(told)[0].Data.(syncedData); got.Reason == "" || strings.Contains(got.Reason, "/var/lib") {
		t.Errorf("an error that clients must not read is told as %q", got.Reason)
	}
	for i := range 150 {
		told.Result.Stats.Failures = append(told.Result.Stats.Failures, s3sync.Failure{Path: fmt.Sprint(i)})
	}
	told.Result.Stats.Failed = 150
	if got := syncDrafts(told)[1].Data.(syncedData); got.Failed != 150 || len(got.Failures) != 100 ||
		got.Failures[99].Path != "99" {
		t.Errorf("of 150 files that failed %d are told, and %d named", got.Failed, len(got.Failures))
	}
}

// TestMountDrafts checks that the event of a mount has the file, the reason, and the place of unsent data. Of many such
// files it names only the first.
// mission: D5
func TestMountDrafts(t *testing.T) {
	t.Parallel()
	about := s3mount.About{Sandbox: "sbx_1", Account: "acme", Place: places.Place{Bucket: "files", Prefix: "work",
		Secret: "aws"}}
	const of = `{"sandbox_id":"sbx_1","bucket":"files","prefix":"work"`
	unsent := []s3mount.Unsent{{Path: "a.txt", File: "/mounts/sbx_1/spool/1", Reason: "S3 is away"}}
	for kind, c := range map[string]struct {
		told s3mount.Told
		want string
	}{
		"s3.file_failed": {s3mount.Told{What: s3mount.FileFailed, Path: "a.txt", Reason: "S3 is full"},
			of + `,"path":"a.txt","reason":"S3 is full"}`},
		"s3.lost": {s3mount.Told{What: s3mount.Lost, Reason: "it was killed"},
			of + `,"reason":"it was killed"}`},
		"s3.left": {s3mount.Told{What: s3mount.Left, Reason: "S3 is away", Dir: "/mounts/sbx_1", Unsent: unsent},
			of + `,"reason":"S3 is away","directory":"/mounts/sbx_1",
			"unsent":[{"path":"a.txt","file":"/mounts/sbx_1/spool/1","reason":"S3 is away"}]}`},
		"s3.sent": {s3mount.Told{What: s3mount.Sent}, of + "}"},
	} {
		c.told.About = about
		wantDrafts(t, mountDrafts(c.told), kind, c.want)
	}
	many := s3mount.Told{About: about, What: s3mount.Left}
	for i := range 150 {
		many.Unsent = append(many.Unsent, s3mount.Unsent{Path: fmt.Sprint(i)})
	}
	if got := mountDrafts(many)[1].Data.(mountData).Unsent; len(got) != 100 || got[99].Path != "99" {
		t.Errorf("of 150 files that are not stored %d are named", len(got))
	}
}
