package enginetest

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// mission: C1, C2

var volumeChecks = []check{
	{"volume/outlives sandboxes", "what one sandbox writes to a volume, the next one reads", mounts, checkVolume},
	{"volume/shared", "a volume is in several sandboxes, and at several paths of one, at the same time",
		mounts, checkShared},
	{"volume/copies", "copies in and out go through mounts, and the provider sees what sandboxes write", mounts,
		checkVolumeCopy},
	{"volume/in use", "a volume is not deleted while a sandbox uses it", mounts, checkVolumeInUse},
	{"volume/read-only", "a volume that is mounted read-only cannot be written", both(mounts, isolated), checkReadOnly},
	{"volume/paths", "no path leaves a volume; files are not listed as directories, and missing paths are not removed",
		mounts, checkVolumePaths},
	{"volume/owner", "a fresh volume belongs to the sandbox's user, and one with files keeps its owner",
		both(mounts, users), checkVolumeOwner},
	{"volume/restart", "volumes and mounts are there after a restart", mounts, checkVolumeRestart},
}

func newVolume(t *testing.T, s *suite) volume.Volume {
	t.Helper()
	v, err := s.engine.Volumes().Create(probe.Patient(t), probe.NewID())
	if err != nil {
		t.Fatalf("create a volume: %v", err)
	}
	return v
}

func mounted(v volume.Volume, path string) engine.Spec {
	return engine.Spec{Mounts: []engine.Mount{{Volume: v.Name(), Path: path}}}
}

func commit(t *testing.T, v volume.Volume) {
	t.Helper()
	if err := v.Commit(probe.Patient(t)); err != nil {
		t.Fatalf("Commit: %v", err)
	}
	if err := v.Reload(probe.Patient(t)); err != nil {
		t.Fatalf("Reload: %v", err)
	}
}

func checkVolume(t *testing.T, s *suite) {
	v := newVolume(t, s)
	first := s.create(t, mounted(v, "/mnt/data"))
	probe.Script(t, first, "/mnt/data", `mkdir sub; printf content >sub/file; chmod 750 sub/file; ln -s sub/file link`)
	commit(t, v)
	if err := first.Destroy(probe.Patient(t)); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	second := s.create(t, mounted(v, "/somewhere/else/deep"))
	if got := probe.Script(t, second, "/somewhere/else/deep",
		`cat link; stat -c ' %a' sub/file`); got != "content 750\n" {
		t.Errorf("the next sandbox reads %q", got)
	}
}

func checkVolumeOwner(t *testing.T, s *suite) {
	as := func(v volume.Volume, user string) engine.Sandbox {
		t.Helper()
		spec := mounted(v, "/mnt/data")
		spec.User = user
		return s.create(t, spec)
	}
	owner := func(sb engine.Sandbox) string {
		t.Helper()
		cmd := probe.Sh("stat -Lc %u:%g .")
		cmd.User, cmd.Dir = "0", "/mnt/data"
		return strings.TrimSpace(probe.Output(t, sb, cmd))
	}
	fresh := newVolume(t, s)
	first := as(fresh, "1234:5678")
	if got := owner(first); got != "1234:5678" {
		t.Errorf("a fresh volume belongs to %s", got)
	}
	if s.engine.Capabilities().Isolated { // other engines reach a volume through directories of the host
		probe.Output(t, first, probe.Sh("mkdir /mnt/data/new && echo content >/mnt/data/new/file"))
	}
	probe.Put(t, first, "/mnt/data", probe.File("file", "content", 0o644))
	commit(t, fresh)
	// An engine with views may not keep owners.
	if got := owner(as(fresh, "4321")); got != "1234:5678" && !s.engine.Capabilities().Views {
		t.Errorf("a volume with files belongs to %s for the next user", got)
	}
	used := newVolume(t, s)
	probe.Put(t, as(used, ""), "/mnt/data", probe.File("file", "content", 0o644))
	commit(t, used)
	if got := owner(as(used, "1234")); got != "0:0" {
		t.Errorf("a volume with files of root belongs to %s", got)
	}
}

func checkShared(t *testing.T, s *suite) {
	v, other := newVolume(t, s), newVolume(t, s)
	a := s.create(t, engine.Spec{Mounts: []engine.Mount{{Volume: v.Name(), Path: "/mnt/one"},
		{Volume: v.Name(), Path: "/mnt/two"}, {Volume: other.Name(), Path: "/other"}}})
	b := s.create(t, mounted(v, "/mnt/v"))
	probe.Script(t, a, "/mnt/one", "printf a >from-a")
	if got := probe.Script(t, a, "/mnt/two", "cat from-a"); got != "a" {
		t.Errorf("the second mount has %q", got)
	}
	commit(t, v)
	probe.Script(t, b, "/mnt/v", `test "$(cat from-a)" = a && printf b >from-b`)
	commit(t, v)
	if got := probe.Script(t, a, "/mnt/one", "cat from-b"); got != "b" {
		t.Errorf("the first sandbox has %q", got)
	}
	if got := probe.Script(t, a, "/other", "ls"); got != "" {
		t.Errorf("another volume has %q", got)
	}
}

func checkVolumeCopy(t *testing.T, s *suite) {
	v := newVolume(t, s)
	if err := v.CopyIn(probe.Patient(t), "", probe.Archive(t, probe.File("from provider", "p", 0o644))); err != nil {
		t.Fatalf("CopyIn: %v", err)
	}
	sb := s.create(t, mounted(v, "/mnt/data"))
	if got := probe.Script(t, sb, "/mnt/data", `cat "from provider"`); got != "p" {
		t.Errorf("the sandbox has %q", got)
	}
	probe.Put(t, sb, "/mnt/data/sub", probe.File("from copy", "c", 0o600))
	probe.Script(t, sb, "/mnt/data", "printf s >sub/from-script")
	if got := probe.Get(t, sb, "/mnt/data"); got["sub/from copy"].Content != "c" ||
		got["sub/from-script"].Content != "s" {
		t.Errorf("the sandbox has %v", got)
	}
	commit(t, v)
	r, err := v.CopyOut(probe.Patient(t), "sub")
	if err != nil {
		t.Fatalf("CopyOut: %v", err)
	}
	defer r.Close()
	if got := probe.Untar(t, r); got["from copy"].Content != "c" || got["from-script"].Content != "s" {
		t.Errorf("the provider has %v", got)
	}
}

func checkVolumePaths(t *testing.T, s *suite) {
	v := newVolume(t, s)
	if err := v.CopyIn(probe.Patient(t), "a/b", probe.Archive(t, probe.File("file", "content", 0o640), probe.Link("out",
		"/etc"),
		probe.Link("up", "../../.."))); err != nil {
		t.Fatalf("CopyIn: %v", err)
	}
	list, err := v.ReadDir(probe.Patient(t), "a/b")
	if err != nil || len(list) != 3 || list[0].Name != "file" || list[0].Size != 7 || list[0].Mode != 0o100640 ||
		list[1].Link != "/etc" || !list[0].Modified.Equal(probe.SomeTime) {
		t.Errorf("ReadDir: %+v, %v", list, err)
	}
	for _, path := range []string{"a/b/out", "a/b/up/etc", "../etc", "a/../../etc"} {
		_, err := v.ReadDir(probe.Patient(t), path)
		probe.WantKind(t, "ReadDir "+path, err, errors.Invalid)
		probe.WantKind(t, "CopyIn "+path, v.CopyIn(probe.Patient(t), path, probe.Archive(t, probe.File("new", "x",
			0o644))), errors.Invalid)
		r, err := v.CopyOut(probe.Patient(t), path+"/passwd")
		if probe.WantKind(t, "CopyOut "+path, err, errors.Invalid); err == nil {
			_ = r.Close()
		}
	}
	probe.WantKind(t, "CopyIn of a path that leaves it", v.CopyIn(probe.Patient(t), "", probe.Archive(t,
		probe.File("../outside", "x", 0o644))),
		errors.Invalid)
	probe.WantKind(t, "CopyIn through a link that leaves it",
		v.CopyIn(probe.Patient(t), "a/b", probe.Archive(t, probe.File("up/etc/new", "x", 0o644))), errors.Invalid)
	probe.WantKind(t, "Remove through a link that leaves it", v.Remove(probe.Patient(t), "a/b/up/etc"), errors.Invalid)
	probe.WantKind(t, "CopyIn of half an archive", v.CopyIn(probe.Patient(t), "", strings.NewReader("no archive")),
		errors.Invalid)
	_, err = v.ReadDir(probe.Patient(t), "a/b/file")
	probe.WantKind(t, "ReadDir of a file", err, errors.Invalid)
	_, err = v.ReadDir(probe.Patient(t), "nothing")
	probe.WantKind(t, "ReadDir of nothing", err, errors.NotFound)
	_, err = v.CopyOut(probe.Patient(t), "nothing")
	probe.WantKind(t, "CopyOut of nothing", err, errors.NotFound)
	probe.WantKind(t, "Remove of nothing", v.Remove(probe.Patient(t), "nothing"), errors.NotFound)
	probe.WantKind(t, "Remove of all", v.Remove(probe.Patient(t), "/"), errors.Invalid)
	if err := v.Remove(probe.Patient(t), "a/b/out"); err != nil {
		t.Errorf("Remove of a link: %v", err)
	}
	if err := v.Remove(probe.Patient(t), "a"); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if list, err := v.ReadDir(probe.Patient(t), ""); err != nil || len(list) != 0 {
		t.Errorf("ReadDir of an empty volume: %+v, %v", list, err)
	}
	if err := s.engine.Volumes().Delete(probe.Patient(t), v.Name()); err != nil {
		t.Errorf("Delete: %v", err)
	}
	_, err = v.ReadDir(probe.Patient(t), "")
	probe.WantKind(t, "ReadDir of a deleted volume", err, errors.NotFound)
	probe.WantKind(t, "Delete of a deleted volume", s.engine.Volumes().Delete(probe.Patient(t), v.Name()),
		errors.NotFound)
	_, err = s.engine.Volumes().Open(probe.Patient(t), v.Name())
	probe.WantKind(t, "Open of a deleted volume", err, errors.NotFound)
}

func checkVolumeInUse(t *testing.T, s *suite) {
	v := newVolume(t, s)
	sb := s.create(t, mounted(v, "/mnt/data"))
	err := s.engine.Volumes().Delete(probe.Patient(t), v.Name())
	probe.WantKind(t, "Delete of a volume in use", err, errors.Conflict)
	if id := sb.Handle().ID; strings.Count(errors.Message(err), engine.Holder(id)) != 1 {
		t.Errorf("Delete of a volume that sandbox %s uses: %q", id, errors.Message(err))
	}
	probe.Script(t, sb, "/mnt/data", "touch still-here")
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	if err := s.engine.Volumes().Delete(probe.Patient(t), v.Name()); err != nil {
		t.Errorf("Delete of an unused volume: %v", err)
	}
	_, err = s.engine.Create(probe.Patient(t), s.spec(mounted(v, "/mnt/data")))
	probe.WantKind(t, "Create with a deleted volume", err, errors.NotFound)
}

func checkReadOnly(t *testing.T, s *suite) {
	v := newVolume(t, s)
	if err := v.CopyIn(probe.Patient(t), "", probe.Archive(t, probe.File("file", "content", 0o666))); err != nil {
		t.Fatalf("CopyIn: %v", err)
	}
	ro, rw := engine.Mount{Volume: v.Name(), Path: "/mnt/ro", ReadOnly: true},
		engine.Mount{Volume: v.Name(), Path: "/mnt/rw"}
	var sb, writer engine.Sandbox
	if s.engine.Capabilities().Views { // a sandbox has one view of a volume, either read-only or writable
		sb, writer = s.create(t, engine.Spec{Mounts: []engine.Mount{ro}}),
			s.create(t, engine.Spec{Mounts: []engine.Mount{rw}})
		_, err := s.engine.Create(probe.Patient(t), s.spec(engine.Spec{Mounts: []engine.Mount{ro, rw}}))
		probe.WantKind(t, "Create with a volume both ways", err, errors.Unsupported)
	} else {
		sb = s.create(t, engine.Spec{Mounts: []engine.Mount{ro, rw}})
		writer = sb
	}
	got := probe.Script(t, sb, "/mnt/ro",
		`cat file; for c in 'echo x >new' 'echo x >file' 'rm file' 'mkdir d' 'chmod 600 file' 'mount -o remount,rw `+
			`/mnt/ro; echo x >new' 'mkdir /b; mount --bind /mnt/ro /b && { mount -o remount,bind,rw /b; `+
			`echo x >/b/new; }'; `+
			`do sh -c "$c" 2>/dev/null && echo " $c worked"; done; true`)
	if got != "content" {
		t.Errorf("it is %q", got)
	}
	if err := sb.CopyIn(probe.Patient(t), "/mnt/ro", probe.Archive(t, probe.File("new", "x", 0o644))); err == nil {
		t.Error("a copy into a read-only mount worked")
	}
	probe.Script(t, writer, "/mnt/rw", "echo x >new")
	commit(t, v)
	if got := probe.Get(t, sb, "/mnt/ro"); got["file"].Content != "content" || got["new"].Content != "x\n" ||
		len(got) != 2 {
		t.Errorf("it has %v", got)
	}
}

func checkVolumeRestart(t *testing.T, s *suite) {
	s = s.separate(t)
	v := newVolume(t, s)
	sb := s.create(t, mounted(v, "/mnt/data"))
	probe.Script(t, sb, "/mnt/data", "printf before >file")
	commit(t, v)
	s.restart(t)
	sb, err := s.engine.Open(probe.Patient(t), sb.Handle())
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if got := probe.Script(t, sb, "/mnt/data", "cat file; printf after >file"); got != "before" {
		t.Errorf("the mount has %q", got)
	}
	probe.WantKind(t, "Delete of a volume in use", s.engine.Volumes().Delete(probe.Patient(t), v.Name()),
		errors.Conflict)
	again, err := s.engine.Volumes().Open(probe.Patient(t), v.Name())
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	commit(t, again)
	list, err := s.engine.Volumes().List(probe.Patient(t))
	if err != nil || len(list) != 1 || list[0].Name != v.Name() || list[0].Files != 1 ||
		list[0].Size != int64(len("after")) {
		t.Errorf("List: %+v, %v", list, err)
	}
	_, err = s.engine.Volumes().Create(probe.Patient(t), strings.Repeat("x", 300))
	probe.WantKind(t, "a long name", err, errors.Invalid)
}
