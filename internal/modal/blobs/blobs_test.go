package blobs_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/blobs"
)

func sum(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:])
}

func open(t *testing.T, dir string, limits blobs.Limits) *blobs.Store {
	t.Helper()
	s, err := blobs.Open(dir, limits)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, s *blobs.Store, account, text string) error {
	return s.Put(t.Context(), account, sum(text), 1<<20, strings.NewReader(text))
}

func text(t *testing.T, s *blobs.Store, account, sum string) (string, error) {
	var b bytes.Buffer
	err := s.Copy(t.Context(), account, sum, &b)
	return b.String(), err
}

func TestBlobsAreVerifiedAndPerAccount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, blobs.Limits{})
	if err := put(t, s, "a", "hello"); err != nil {
		t.Fatal(err)
	}
	if got, err := text(t, s, "a", sum("hello")); err != nil || got != "hello" {
		t.Errorf("the blob is %q, %v", got, err)
	}
	if s.Has("b", sum("hello")) {
		t.Error("another account has the blob")
	}
	if _, err := text(t, s, "b", sum("hello")); errors.KindOf(err) != errors.NotFound {
		t.Errorf("another account reads the blob: %v", err)
	}
	if err := s.Put(t.Context(), "a", sum("other"), 100,
		strings.NewReader("hello")); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a wrong checksum: %v", err)
	}
	if err := s.Put(t.Context(), "a", sum("longer"), 3,
		strings.NewReader("longer")); errors.KindOf(err) != errors.Invalid {
		t.Errorf("too much content: %v", err)
	}
	for _, bad := range []string{"", "..", "../../x", strings.Repeat("A", 64), sum("x") + "/"} {
		if err := s.Put(t.Context(), "a", bad, 9, strings.NewReader("x")); errors.KindOf(err) != errors.Invalid {
			t.Errorf("the digest %q: %v", bad, err)
		}
		if err := s.Put(t.Context(), bad+"/", sum("x"), 9,
			strings.NewReader("x")); errors.KindOf(err) != errors.Invalid {
			t.Errorf("the account %q: %v", bad, err)
		}
	}
	again := open(t, dir, blobs.Limits{})
	if !again.Has("a", sum("hello")) || again.Has("a", sum("other")) {
		t.Error("the blobs after a restart are not those before")
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "blobs", sum("hello")), []byte("hullo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := text(t, again, "a", sum("hello")); errors.KindOf(err) != errors.Unavailable ||
		again.Has("a", sum("hello")) {
		t.Errorf("a damaged blob: %v, still there: %t", err, again.Has("a", sum("hello")))
	}
}

func TestBlobLimits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	limits := blobs.Limits{Blob: 6, Account: 10, Uploads: 1}
	s := open(t, dir, limits)
	if err := s.Put(t.Context(), "a", sum("1234567"), 100,
		strings.NewReader("1234567")); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("a large blob: %v", err)
	}
	if err := put(t, s, "a", "123456"); err != nil {
		t.Fatal(err)
	}
	if err := put(t, s, "a", "12345"); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("beyond the account's limit: %v", err)
	}
	if err := put(t, s, "b", "12345"); err != nil {
		t.Errorf("the limit is another account's: %v", err)
	}
	s = open(t, dir, limits) // counts again
	if _, _, err := s.Begin("a", sum("12345"), 5); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("an upload beyond the account's limit: %v", err)
	}
	if _, _, err := s.Begin("a", sum("1234"), 4); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Begin("a", sum(""), 0); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("a second upload: %v", err)
	}
	if _, _, err := s.Begin("b", sum(""), -1); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a negative size: %v", err)
	}
	s = open(t, dir, limits)
	if err := put(t, s, "a", "1"); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("the upload of an earlier process does not count: %v", err)
	}
	s.Sweep(time.Now().Add(7*time.Hour), func(string, string) bool { return false })
	if err := put(t, s, "a", "1"); err != nil {
		t.Errorf("an upload that ended still counts: %v", err)
	}
	if err := put(t, open(t, t.TempDir(), blobs.Limits{Free: 1 << 62}), "a",
		"1"); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("a full disk: %v", err)
	}
}

func TestUploadContinuesAfterRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	content := make([]byte, 70<<20) // two parts
	copy(content[69<<20:], "end")
	digest := sum(string(content))
	s := open(t, dir, blobs.Limits{})
	name, up, err := s.Begin("a", digest, int64(len(content)))
	if err != nil || up.Parts() != 2 {
		t.Fatalf("the upload has %d parts, %v", up.Parts(), err)
	}
	part := func(s *blobs.Store, n int, data []byte) (string, error) {
		return s.WritePart(t.Context(), "a", name, n, bytes.NewReader(data))
	}
	first, err := part(s, 1, content[:up.Part])
	if want := fmt.Sprintf("%x", md5.Sum(content[:up.Part])); err != nil || first != want {
		t.Fatalf("the first part is %q, %v, want %q", first, err, want)
	}
	s = open(t, dir, blobs.Limits{})
	for what, c := range map[string]struct {
		n    int
		data []byte
	}{"a short part": {2, content[up.Part+1:]}, "a long part": {2, content}, "no part": {3, nil}, "part 0": {0, nil}} {
		if _, err := part(s, c.n, c.data); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.WritePart(t.Context(), "b", name, 2, bytes.NewReader(nil)); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a part of another account: %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.WritePart(canceled, "a", name, 2, bytes.NewReader(content[up.Part:])); !errors.Is(err,
		context.Canceled) {
		t.Errorf("a canceled part: %v", err)
	}
	wrong, err := part(s, 2, make([]byte, 6<<20))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Complete(t.Context(), "a", name, digest, []string{first,
		wrong}); errors.KindOf(err) != errors.Invalid ||
		!strings.Contains(errors.Message(err), digest) {
		t.Errorf("wrong content: %v", err)
	}
	second, err := part(s, 2, content[up.Part:])
	if err != nil {
		t.Fatal(err)
	}
	for what, etags := range map[string][]string{"too few": {first}, "others": {first, first}, "none": {"x", "y"}} {
		if _, err := s.Complete(t.Context(), "a", name, digest, etags); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	for range 2 { // the answer may be lost
		whole, err := s.Complete(t.Context(), "a", name, digest, []string{first, second})
		if err != nil || !strings.HasSuffix(whole, "-2") || len(whole) != 34 {
			t.Fatalf("the upload is %q, %v", whole, err)
		}
	}
	if got, err := text(t, s, "a", digest); err != nil || got != string(content) {
		t.Errorf("the blob has %d bytes, %v", len(got), err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "a", "uploads")); err != nil || len(left) != 0 {
		t.Errorf("of the upload are left %v, %v", left, err)
	}
}

func TestSweepRemovesUnusedBlobs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, blobs.Limits{})
	for _, text := range []string{"unused", "kept", "released"} {
		if err := put(t, s, "a", text); err != nil {
			t.Fatal(err)
		}
	}
	kept := func(_, digest string) bool { return digest == sum("kept") }
	s.Sweep(time.Now(), kept)
	if !s.Has("a", sum("unused")) {
		t.Error("a new blob was removed")
	}
	s.Release("a", sum("released"))
	s.Sweep(time.Now().Add(time.Hour), kept)
	if s.Has("a", sum("released")) || !s.Has("a", sum("unused")) {
		t.Error("not only the released blob was removed")
	}
	s.Sweep(time.Now().Add(8*24*time.Hour), kept)
	if s.Has("a", sum("unused")) || !s.Has("a", sum("kept")) {
		t.Error("not only the unused blob was removed")
	}
	// What a killed process leaves is removed by the next one.
	if err := os.MkdirAll(filepath.Join(dir, "a", "uploads", strings.Repeat("A", 26)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "temp", "put-1"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, dir, blobs.Limits{})
	for _, name := range []string{"uploads/" + strings.Repeat("A", 26), "temp/put-1"} {
		if _, err := os.Stat(filepath.Join(dir, "a", name)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}
