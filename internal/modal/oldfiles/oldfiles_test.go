package oldfiles_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/oldfiles"
)

// tree is a sandbox's files in memory: one directory, "/".
type tree struct {
	mu      sync.Mutex
	files   map[string]string // guarded by mu
	version int               // guarded by mu
	watched chan func([]byte) error
}

func newTree() *tree {
	return &tree{files: map[string]string{}, watched: make(chan func([]byte) error, 1)}
}

func (t *tree) set(name, content string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.files[name] = content
	t.version++
}

func (t *tree) get(name string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.files[name]
}

func (t *tree) Stat(_ context.Context, name string) (oldfiles.Info, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if name == "/" {
		return oldfiles.Info{Dir: true}, nil
	}
	content, ok := t.files[name]
	if !ok {
		return oldfiles.Info{}, &oldfiles.Error{Code: oldfiles.NoEntry, Message: "none"}
	}
	return oldfiles.Info{Size: int64(len(content)), Version: fmt.Sprint(t.version)}, nil
}

func (t *tree) Read(_ context.Context, name string, to io.Writer) error {
	_, err := io.WriteString(to, t.get(name))
	return err
}

func (t *tree) Write(_ context.Context, name string, _ int64, from io.Reader) error {
	data, err := io.ReadAll(from)
	t.set(name, string(data))
	return err
}

func (t *tree) List(context.Context, string) (names []string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range maps.Keys(t.files) {
		names = append(names, path.Base(name))
	}
	slices.Sort(names)
	return names, nil
}

func (t *tree) Mkdir(context.Context, string, bool) error  { return nil }
func (t *tree) Remove(context.Context, string, bool) error { return nil }

func (t *tree) Watch(ctx context.Context, _ string, _ bool, event func([]byte) error) error {
	t.watched <- event
	<-ctx.Done()
	return nil
}

func sessions(t *testing.T) *oldfiles.Sessions {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return oldfiles.New(ctx, t.TempDir())
}

// do runs an operation in the sandbox "box", and returns its output and error.
func do(t *testing.T, s *oldfiles.Sessions, files *tree, req pb.ContainerFilesystemExecRequest_builder) (out, fd string,
	failed *oldfiles.Error) {
	t.Helper()
	id, fd, err := s.Do(t.Context(), "box", files, req.Build())
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	if err := s.Output(t.Context(), id, time.Minute, func(b oldfiles.Batch) error {
		all.Write(b.Output)
		if b.Failed != nil {
			failed = b.Failed
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all.String(), fd, failed
}

func open(t *testing.T, s *oldfiles.Sessions, files *tree, name, mode string) string {
	t.Helper()
	_, fd, failed := do(t, s, files, pb.ContainerFilesystemExecRequest_builder{
		FileOpenRequest: pb.ContainerFileOpenRequest_builder{Path: name, Mode: mode}.Build()})
	if failed != nil {
		t.Fatalf("open %s: %v", mode, failed)
	}
	return fd
}

func write(fd, data string) pb.ContainerFilesystemExecRequest_builder {
	return pb.ContainerFilesystemExecRequest_builder{
		FileWriteRequest: pb.ContainerFileWriteRequest_builder{FileDescriptor: fd, Data: []byte(data)}.Build()}
}

func read(fd string) pb.ContainerFilesystemExecRequest_builder {
	return pb.ContainerFilesystemExecRequest_builder{
		FileReadRequest: pb.ContainerFileReadRequest_builder{FileDescriptor: fd}.Build()}
}

func flush(fd string) pb.ContainerFilesystemExecRequest_builder {
	return pb.ContainerFilesystemExecRequest_builder{
		FileFlushRequest: pb.ContainerFileFlushRequest_builder{FileDescriptor: fd}.Build()}
}

// TestSandboxWritesMeanwhile checks that a reader sees what programs write after it opened the file, and that appended
// bytes follow what programs appended meanwhile.
func TestSandboxWritesMeanwhile(t *testing.T) {
	t.Parallel()
	s, files := sessions(t), newTree()
	files.set("/f", "one\n")
	r, a := open(t, s, files, "/f", "r"), open(t, s, files, "/f", "a")
	if out, _, _ := do(t, s, files, read(r)); out != "one\n" {
		t.Errorf("first comes %q", out)
	}
	do(t, s, files, write(a, "mine\n"))
	files.set("/f", "one\ntwo\n")
	if out, _, _ := do(t, s, files, read(r)); out != "two\n" {
		t.Errorf("then comes %q", out)
	}
	if _, _, failed := do(t, s, files, flush(a)); failed != nil || files.get("/f") != "one\ntwo\nmine\n" {
		t.Errorf("the file has %q, %v", files.get("/f"), failed)
	}
	do(t, s, files, write(a, "more\n"))
	do(t, s, files, pb.ContainerFilesystemExecRequest_builder{
		FileCloseRequest: pb.ContainerFileCloseRequest_builder{FileDescriptor: a}.Build()})
	if files.get("/f") != "one\ntwo\nmine\nmore\n" {
		t.Errorf("the file has %q", files.get("/f"))
	}
	if _, _, err := s.Do(t.Context(), "box", files, flush(a).Build()); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a closed file: %v", err)
	}
	if _, _, err := s.Do(t.Context(), "other", files, read(r).Build()); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a file of another sandbox: %v", err)
	}
}

// TestManyFiles checks that the number of open files is limited, and that the end of the sandbox closes them.
func TestManyFiles(t *testing.T) {
	t.Parallel()
	s, files := sessions(t), newTree()
	files.set("/f", "x")
	last := ""
	for range 64 {
		last = open(t, s, files, "/f", "r")
	}
	if _, _, failed := do(t, s, files, pb.ContainerFilesystemExecRequest_builder{
		FileOpenRequest: pb.ContainerFileOpenRequest_builder{Path: "/f", Mode: "r"}.Build()}); failed == nil ||
		failed.Code != oldfiles.TooMany {
		t.Errorf("one more: %v", failed)
	}
	s.End("box")
	if _, _, err := s.Do(t.Context(), "box", files, read(last).Build()); errors.KindOf(err) != errors.NotFound {
		t.Errorf("after the end: %v", err)
	}
	open(t, s, files, "/f", "r")
}

// TestUnreadResults checks that results that nobody reads are limited.
func TestUnreadResults(t *testing.T) {
	t.Parallel()
	s, files := sessions(t), newTree()
	ls := pb.ContainerFilesystemExecRequest_builder{
		FileLsRequest: pb.ContainerFileLsRequest_builder{Path: "/"}.Build()}.Build()
	for range 256 {
		if _, _, err := s.Do(t.Context(), "box", files, ls); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Do(t.Context(), "box", files, ls); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("one more: %v", err)
	}
	if _, _, err := s.Do(t.Context(), "other", files, ls); err != nil {
		t.Errorf("another sandbox: %v", err)
	}
}

// TestWatchEnds checks that the events of a watch are read in parts, and that it ends with its time limit and with the
// sandbox.
func TestWatchEnds(t *testing.T) {
	t.Parallel()
	s, files := sessions(t), newTree()
	limit := uint64(3600)
	id, _, err := s.Do(t.Context(), "box", files, pb.ContainerFilesystemExecRequest_builder{
		FileWatchRequest: pb.ContainerFileWatchRequest_builder{Path: "/", TimeoutSecs: &limit}.Build()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	event := <-files.watched
	if err := event([]byte("{}")); err != nil {
		t.Fatal(err)
	}
	stop := errors.Newf(errors.Canceled, "enough")
	if err := s.Output(t.Context(), id, time.Minute, func(b oldfiles.Batch) error {
		if string(b.Output) != "{}\n\n" {
			t.Errorf("the event is %q", b.Output)
		}
		return stop
	}); !errors.Is(err, stop) {
		t.Errorf("reading ends with %v", err)
	}
	if err := s.Output(t.Context(), id, 0, func(b oldfiles.Batch) error {
		t.Errorf("there is %+v", b)
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := event(bytes.Repeat([]byte("x"), 2<<20)); err == nil {
		t.Error("events without a reader are kept without limit")
	}
	s.End("box")
	ended := false
	if err := s.Output(t.Context(), id, time.Minute, func(b oldfiles.Batch) error {
		ended = ended || b.EOF
		return nil
	}); err != nil || !ended {
		t.Errorf("after the end of the sandbox: %v, %v", ended, err)
	}
	if _, err := s.Box("none"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("an unknown result: %v", err)
	}
}

// TestModes checks the modes of Python's open.
func TestModes(t *testing.T) {
	t.Parallel()
	s, files := sessions(t), newTree()
	files.set("/f", "x")
	for _, mode := range []string{"", "b", "rr", "rw", "z", "r++", "ax"} {
		if _, _, failed := do(t, s, files, pb.ContainerFilesystemExecRequest_builder{
			FileOpenRequest: pb.ContainerFileOpenRequest_builder{Path: "/f", Mode: mode}.Build()}); failed == nil ||
			failed.Code != oldfiles.Invalid {
			t.Errorf("%q: %v", mode, failed)
		}
	}
	fd := open(t, s, files, "/f", "wb")
	if _, _, failed := do(t, s, files, read(fd)); failed == nil || failed.Code != oldfiles.Invalid {
		t.Errorf("a file that is open for writing was read: %v", failed)
	}
	if files.get("/f") != "" {
		t.Errorf("a file that is open for writing has %q", files.get("/f"))
	}
}

// TestMessages checks the encoding of the messages that have no generated stubs.
func TestMessages(t *testing.T) {
	t.Parallel()
	raw := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "fe-1")
	raw = protowire.AppendFixed32(protowire.AppendTag(raw, 2, protowire.Fixed32Type), 0x3fc00000)
	raw = protowire.AppendVarint(protowire.AppendTag(raw, 9, protowire.VarintType), 1) // of a later version
	if id, timeout, err := oldfiles.ParseRequest(raw); id != "fe-1" || timeout != 1.5 || err != nil {
		t.Errorf("%s, %v, %v", id, timeout, err)
	}
	for _, bad := range []string{"\x0a\x05abc", "\xff", "\x15\x00"} {
		if _, _, err := oldfiles.ParseRequest([]byte(bad)); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
	got := oldfiles.Batch{Failed: &oldfiles.Error{Code: oldfiles.NoEntry, Message: "no"}}.Message(7)
	if want := "\x12\x06\x08\x02\x12\x02no\x18\x07"; string(got) != want {
		t.Errorf("an error is %q, want %q", got, want)
	}
	if got := string(oldfiles.Batch{Output: []byte("o"), EOF: true}.Message(0)); !strings.HasPrefix(got, "\x0a\x01o") ||
		!strings.HasSuffix(got, "\x20\x01") {
		t.Errorf("output is %q", got)
	}
}
