package web_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/web"
)

// The libraries are those that the list names, unchanged, and every one has its licence.
func TestVendor(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("vendor/CHECKSUMS")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{"CHECKSUMS": true}
	for line := range strings.Lines(string(list)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		row := strings.Fields(line)
		if len(row) != 6 {
			t.Fatalf("%q", line)
		}
		file, ok := web.Open("vendor/" + row[0])
		if sum := sha256.Sum256(file.Data); !ok || hex.EncodeToString(sum[:]) != row[5] {
			t.Errorf("%s is not what was vendored", row[0])
		}
		licence := strings.TrimSuffix(row[0], filepath.Ext(row[0])) + ".LICENSE"
		if _, ok := web.Open("vendor/" + licence); !ok {
			t.Errorf("%s has no licence", row[0])
		}
		listed[row[0]], listed[licence] = true, true
	}
	all, err := os.ReadDir("vendor")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		if !listed[file.Name()] {
			t.Errorf("vendor/%s is not in the list", file.Name())
		}
	}
}

// The page is plain files without a build step; our own are small, name each other by relative addresses, and have nothing inline.
// mission: 7.9
func TestPlainFiles(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("*.*")
	if err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`(?:src|href|from|import)\s*[=(]?\s*["'](/[^"']*|https?://[^"']*)["']`)
	inline := regexp.MustCompile(`(?i)\sstyle\s*=|\son\w+\s*=\s*"|<style|<script[^>]*>[^<]`)
	size := 0
	for _, name := range names {
		if filepath.Ext(name) == ".go" {
			continue
		}
		file, ok := web.Open(name)
		if !ok {
			t.Errorf("%s is not in the binary", name)
		}
		size += len(file.Data)
		if m := address.Find(file.Data); m != nil {
			t.Errorf("%s: %s works at the root of a host only", name, m)
		}
		if m := inline.Find(file.Data); m != nil && filepath.Ext(name) == ".html" {
			t.Errorf("%s: %s", name, m)
		}
		for _, sink := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"} {
			if bytes.Contains(file.Data, []byte(sink)) {
				t.Errorf("%s uses %s", name, sink)
			}
		}
	}
	if size > 200_000 {
		t.Errorf("%d bytes of our own", size)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	page, ok := web.Open(web.Index)
	if !ok || page.Type != "text/html; charset=utf-8" || len(page.Tag) != 26 {
		t.Errorf("%q %q", page.Type, page.Tag)
	}
	if again, _ := web.Open(web.Index); again.Tag != page.Tag {
		t.Errorf("%q", again.Tag)
	}
	if list, ok := web.Open("vendor/CHECKSUMS"); !ok || list.Type != "text/plain; charset=utf-8" {
		t.Errorf("%q", list.Type)
	}
	for _, name := range []string{"", "vendor", "../web.go", "web.go", "nosuch.js"} {
		if _, ok := web.Open(name); ok {
			t.Errorf("%q is there", name)
		}
	}
}
