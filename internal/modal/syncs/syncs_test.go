package syncs_test

import (
	"reflect"
	"testing"

	"github.com/RelevanceAI/harvest/internal/modal/syncs"
)

// TestOf checks which commands flush files, and which ones.
//
// mission: C1
func TestOf(t *testing.T) {
	direct := func(paths ...string) *syncs.Flush { return &syncs.Flush{Paths: paths} }
	script := func(paths ...string) *syncs.Flush { return &syncs.Flush{Script: true, Paths: paths} }
	everything, unknown := &syncs.Flush{All: true}, &syncs.Flush{All: true, Script: true}
	for _, c := range []struct {
		args []string
		want *syncs.Flush
	}{
		{[]string{"sync", "/data"}, direct("/data")},
		{[]string{"/bin/sync", "-f", "/data/"}, direct("/data")},
		{[]string{"sync", "-d", "--", "-x", "/b/c"}, direct("/srv/-x", "/b/c")},
		{[]string{"sync", "."}, direct("/srv")},
		{[]string{"busybox", "sync", "/data"}, direct("/data")},
		{[]string{"sync"}, everything},
		{[]string{"sync", "/a$b"}, direct("/a$b")},
		{[]string{"sh", "-c", "echo x >/data/f; sync /data"}, script("/data")},
		{[]string{"bash", "-lc", "cd /data && sync /data/f /other && ls"}, script("/data/f", "/other")},
		{[]string{"bash", "-c", `sync "/data"`}, script("/data")},
		{[]string{"sh", "-c", "sync /data>/dev/null 2>&1"}, script("/data")},
		{[]string{"sh", "-c", "true\n  sync /data # now\n"}, script("/data")},
		{[]string{"sh", "-c", "if true; then /usr/bin/sync /data; fi"}, script("/data")},
		{[]string{"sh", "-c", "(sync /data)"}, script("/data")},
		{[]string{"sh", "-c", "sync $DATA"}, unknown},
		{[]string{"sh", "-c", "cd /data; sync ."}, unknown},
		{[]string{"sh", "-c", "echo x >/data/f; sync"}, unknown},
		{[]string{"timeout", "30", "sync", "/data"}, script("/data")},
		{[]string{"env", "sync", "/data"}, script("/data")},
		{[]string{"python3", "-c", `import subprocess; subprocess.run(["sync", "/data"])`}, script("/data")},
		{[]string{"uv", "sync"}, nil},
		{[]string{"sh", "-c", "uv sync; git lfs sync /data; rsync /a /b"}, nil},
		{[]string{"sh", "-c", "syncthing; async /data; sync=1"}, nil},
		{[]string{"npm", "run", "sync"}, nil},
		{[]string{"echo", "out of sync"}, nil},
		{nil, nil},
	} {
		if got := syncs.Of(c.args, "/srv"); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, want %+v", c.args, got, c.want)
		}
	}
}

// TestCovers checks which volumes belong to flushed paths.
//
// mission: C1
func TestCovers(t *testing.T) {
	f := &syncs.Flush{Paths: []string{"/data/in", "/other"}}
	for dir, want := range map[string]bool{"/data": true, "/data/": true, "/other": true, "/oth": false,
		"/data/in/deep": false, "/dat": false} {
		if got := f.Covers(dir); got != want {
			t.Errorf("%s: %v", dir, got)
		}
	}
	if all := (&syncs.Flush{All: true}); !all.Covers("/any") {
		t.Error("a flush of everything leaves out a volume")
	}
}
