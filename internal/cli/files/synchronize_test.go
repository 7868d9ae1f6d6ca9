package files

import (
	"bytes"
	"io"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// TestSyncBar checks that a sync in a terminal shows a progress bar once the total is known.
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

// TestSyncReportsWait checks that a sync names a server that does not answer, once for each wait, and not with --quiet.
// mission: 2.6
func TestSyncReportsWait(t *testing.T) {
	t.Parallel()
	for _, quiet := range []bool{false, true} {
		var out bytes.Buffer
		base := cli.New("harvest", nil, io.Discard, &out, nil)
		base.Quiet, base.Format = quiet, cli.FormatJSON
		err := commands{base}.synchronize("data", func(show func(api.SyncStats)) (api.Synced, error) {
			for _, waiting := range []string{"", "S3 at host", "S3 at host", "", "S3 at host"} {
				show(api.SyncStats{Waiting: waiting})
			}
			return api.Synced{}, nil
		})
		want := "harvest: waiting for S3 at host\nharvest: waiting for S3 at host\n"
		if quiet {
			want = ""
		}
		if out.String() != want || err != nil {
			t.Errorf("quiet %v: shown %q, %v", quiet, out.String(), err)
		}
	}
}

// TestSyncIgnoresSpecialFiles checks that a FIFO is named and is no failure.
// mission: 2.5
func TestSyncIgnoresSpecialFiles(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	base := cli.New("harvest", nil, io.Discard, &out, nil)
	base.Format = cli.FormatJSON
	err := commands{base}.synchronize("data", func(func(api.SyncStats)) (api.Synced, error) {
		return api.Synced{SyncStats: api.SyncStats{Ignored: []api.SyncedPath{{Path: "pipe", Reason: "a FIFO"}}}}, nil
	})
	if want := "harvest: pipe: a FIFO\n"; out.String() != want || err != nil {
		t.Errorf("shown %q, %v", out.String(), err)
	}
}

// TestQuietSyncShowsRemarks checks that --quiet hides neither the conflicts of a sync nor its failures with their
// remedies, whether the sync ends with statistics or with an error.
// mission: 2.6
func TestQuietSyncShowsRemarks(t *testing.T) {
	t.Parallel()
	stats := api.SyncStats{Conflicts: 1, Failed: 1, Refusal: "too many",
		Decided:  []api.SyncedPath{{Path: "a", Reason: "both are kept"}},
		Failures: []api.SyncedPath{{Path: "b", Reason: "it failed", Remedy: "mend it"}}}
	refused := errors.Newf(errors.Conflict, "refused")
	for _, ended := range []error{nil, refused} {
		var out bytes.Buffer
		base := cli.New("harvest", nil, io.Discard, &out, nil)
		base.Quiet, base.Format = true, cli.FormatJSON
		err := commands{base}.synchronize("data", func(show func(api.SyncStats)) (api.Synced, error) {
			show(stats)
			return api.Synced{SyncStats: stats}, ended
		})
		want := "harvest: a: both are kept\nharvest: b: it failed; mend it\nharvest: too many\n"
		if out.String() != want {
			t.Errorf("shown %q, want %q", out.String(), want)
		}
		if ended != nil && err != ended || ended == nil && err.Error() != "1 path was not synchronised" {
			t.Errorf("the error is %v", err)
		}
	}
}
