package enginetest

import (
	"bytes"
	"encoding/json"
	"path"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A4, E10

var fileChecks = []check{
	{"files/version", "a file's version changes with its content, also if size and time stay, and not otherwise", nil,
		checkFileVersion},
	{"files/version on a volume", "the same for files on a volume", mounts, checkVolumeFileVersion},
}

// look returns the result of a stat request.
func look(t *testing.T, sb engine.Sandbox, name string) tarfs.Entry {
	t.Helper()
	filer, ok := sb.(engine.Filer)
	if !ok {
		t.Skip("does not apply: the engine has no Filer")
	}
	var out bytes.Buffer
	var e tarfs.Entry
	err := filer.Files(probe.Patient(t), tarfs.Request{Op: tarfs.OpStat, Path: name}, &out)
	if err = errors.Join(err, json.Unmarshal(out.Bytes(), &e)); err != nil {
		t.Fatalf("stat %s: %v", name, err)
	}
	return e
}

func checkFileVersion(t *testing.T, s *suite) { fileVersions(t, s.shared, probe.NewDir(t, s.shared)) }

func checkVolumeFileVersion(t *testing.T, s *suite) {
	fileVersions(t, s.create(t, mounted(newVolume(t, s), "/mnt/data")), "/mnt/data")
}

func fileVersions(t *testing.T, sb engine.Sandbox, dir string) {
	t.Helper()
	name := path.Join(dir, "file")
	seen := map[string]string{}
	change := func(what, run string) {
		t.Helper()
		probe.Script(t, sb, dir, run)
		e := look(t, sb, name)
		if before, found := seen[e.Version]; found || e.Version == "" {
			t.Errorf("%s: the version %q is that of: %s", what, e.Version, before)
		}
		seen[e.Version] = what
		if again := look(t, sb, name); again.Version != e.Version {
			t.Errorf("%s: the version is %q, then %q", what, e.Version, again.Version)
		}
	}
	change("made", `printf one >file; touch -d @1600000000 file`)
	change("written over", `printf two >file; touch -d @1600000000 file`)
	change("replaced", `printf 333 >new; touch -d @1600000000 new; mv new file`)
	probe.Put(t, sb, dir, probe.File("file", "444", 0o644))
	first := look(t, sb, name)
	probe.Put(t, sb, dir, probe.File("file", "555", 0o644))
	if e := look(t, sb, name); e.Version == first.Version || e.Version == "" {
		t.Errorf("copied over: the version stays %q", e.Version)
	}
}
