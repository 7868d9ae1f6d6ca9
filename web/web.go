// Package web holds Harvest's page: plain HTML, CSS and JavaScript modules, as they are here, without a build step. Package server serves
// them. What stands below vendor is of others: vendor/CHECKSUMS tells which version of what, and by which licence.
package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"path"
	"strings"
	"sync"
)

//go:embed index.html icon.svg style.css *.js vendor
var files embed.FS

// Index is the name of the page itself.
const Index = "index.html"

// Policy returns the Content-Security-Policy with which the page must be served. Only our own files are loaded, nothing inline runs, and what is
// made into HTML has to come from the sanitiser (https://www.w3.org/TR/trusted-types/). frames is what may be shown in frames, such as
// "https://*.ports.example.org"; "" is nothing.
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
	Type string // its media type
	Tag  string // an ETag: other contents have another one
	// Fixed says that the name has the version of all files: what it names is always the same, and may be kept without asking.
	Fixed bool
}

// version names what all files have in them. The page asks for its files below "v-" and this.
var version = sync.OnceValue(func() string {
	sum := sha256.New()
	_ = fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error { // of what is in the binary nothing can fail
		if err == nil && !entry.IsDir() {
			data, _ := files.ReadFile(name)
			of := sha256.Sum256(data)
			sum.Write(append([]byte(name), of[:]...))
		}
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:8])
})

// types are the media types by extension. Those that the machine knows may be others.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

var tags sync.Map // of files, by name

// Open returns the file of a name, such as "app.js", "vendor/marked.js" or, as the page asks for them, "v-VERSION/app.js"; false if there is none.
// With another version it is the file that there is now: a page that was opened before an update goes on.
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
	tag, ok := tags.Load(name)
	if !ok {
		sum := sha256.Sum256(data)
		tag, _ = tags.LoadOrStore(name, `"`+hex.EncodeToString(sum[:12])+`"`)
	}
	return File{Data: data, Type: kind, Tag: tag.(string), Fixed: fixed}, true
}
