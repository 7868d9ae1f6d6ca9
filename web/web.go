// Package web holds Harvest's page: plain HTML, CSS and JavaScript modules without a build step. Package server serves
// them. The directory vendor holds third-party libraries; vendor/CHECKSUMS lists their versions and licenses.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"path"
	"strings"
	"sync"
)

//go:embed index.html *.svg style.css *.js vendor
var files embed.FS

// Index is the name of the page itself.
const Index = "index.html"

// Policy returns the page's Content-Security-Policy. It allows only files of the page itself, forbids inline scripts,
// and requires that HTML comes from the sanitiser (https://www.w3.org/TR/trusted-types/). frames lists the sources of
// frames, such as "https://*.ports.example.org"; "" allows none.
func Policy(frames string) string {
	if frames == "" {
		frames = "'none'"
	}
	return "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-src " + frames + "; form-action 'none'; " +
		"frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
}

// File is one of the page's files.
type File struct {
	Data []byte
	Type string // media type
	Tag  string // ETag, which changes with the content
	// Gzip is Data compressed by gzip; nil if that is not smaller.
	Gzip []byte
	// Fixed reports whether the name contains the current version: clients may cache such a file forever.
	Fixed bool
}

// version is a hash of all files. The page requests its files below "v-" and the version.
var version = sync.OnceValue(func() string {
	sum := sha256.New()
	_ = fs.WalkDir(files, ".", func(name string, entry fs.DirEntry,
		err error) error { // reading embedded files cannot fail
		if err == nil && !entry.IsDir() {
			data, _ := files.ReadFile(name)
			of := sha256.Sum256(data)
			sum.Write(append([]byte(name), of[:]...))
		}
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:8])
})

// types maps extensions to media types. The machine's own table may differ.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// packed is a file's tag and compressed form.
type packed struct {
	tag  string
	gzip []byte
}

var known sync.Map // packed, by the file's name

// pack returns the tag and the compressed form of a file, which it computes once.
func pack(name string, data []byte) packed {
	if p, ok := known.Load(name); ok {
		return p.(packed)
	}
	sum := sha256.Sum256(data)
	p := packed{tag: `"` + hex.EncodeToString(sum[:12]) + `"`}
	var out bytes.Buffer
	zip, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level is valid, and a buffer accepts all
	_, _ = zip.Write(data)
	_ = zip.Close()
	if out.Len() < len(data) {
		p.gzip = out.Bytes()
	}
	known.Store(name, p)
	return p
}

// Open returns a file by name, such as "app.js", "vendor/marked.js" or "v-VERSION/app.js", and false if there is none.
// For another version it returns the current file, so that a page that was opened before an update keeps working.
func Open(name string) (File, bool) {
	fixed := false
	if below, ok := strings.CutPrefix(name, "v-"); ok {
		var of string
		of, name, _ = strings.Cut(below, "/")
		fixed = of == version()
	}
	data, err := files.ReadFile(name)
	if err != nil {
		return File{}, false
	}
	if name == Index {
		data = bytes.ReplaceAll(data, []byte(`="ui/`), []byte(`="ui/v-`+version()+`/`))
	}
	kind, ok := types[path.Ext(name)]
	if !ok {
		kind = "text/plain; charset=utf-8"
	}
	p := pack(name, data)
	return File{Data: data, Type: kind, Tag: p.tag, Gzip: p.gzip, Fixed: fixed}, true
}
