package object

import (
	"cmp"
	"context"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

const (
	metaPrefix    = "X-Amz-Meta-"
	metaMtime     = "X-Amz-Meta-Mtime"
	taggingHeader = "X-Amz-Tagging"
)

// keptHeaders are headers of an object that other programs may have set, besides user metadata.
var keptHeaders = map[string]bool{"Content-Type": true, "Cache-Control": true, "Content-Disposition": true,
	"Content-Encoding": true,
	"Content-Language": true, "Expires": true}

// ownMeta are the names of the metadata that describe a file. They are not kept from other
// programs.
var ownMeta = map[string]bool{"Mode": true, "Uid": true, "Gid": true, "Mtime": true, "File-Permissions": true,
	"File-Owner": true,
	"File-Group": true, "File-Mtime": true}

// KeepHeaders adds to h the headers, user metadata and tags that other programs set on the current object
// of key, so that a new object keeps them. It returns ErrChangedObject if that object is not the
// one of c.
func (b *Bucket) KeepHeaders(ctx context.Context, key string, h http.Header, e *tree.Entry, c Condition) error {
	if c.ETag == "" || e.Kind != tree.File {
		return nil
	}
	res, err := b.Head(ctx, key)
	if err != nil {
		return c.unmet(err)
	}
	if etag, err := b.Tagged(res.Header.Get("ETag")); err != nil || etag != c.ETag {
		return cmp.Or(err, ErrChangedObject)
	}
	return b.adoptHeaders(ctx, key, h, res.Header)
}

// adoptHeaders adds to h the headers that were set on the object of key. from is its answer to
// HEAD.
func (b *Bucket) adoptHeaders(ctx context.Context, key string, h, from http.Header) error {
	for name, value := range from {
		meta, user := strings.CutPrefix(name, metaPrefix)
		if user && !ownMeta[meta] || keptHeaders[name] {
			h[name] = value
		}
	}
	if n := from.Get("X-Amz-Tagging-Count"); n == "" || n == "0" {
		return nil
	}
	call, cancel := b.within(ctx, 0)
	defer cancel()
	tags, err := b.s3.GetObjectTagging(call, &sdk.GetObjectTaggingInput{Bucket: &b.loc.Bucket,
		Key: aws.String(b.prefix + key)}, b.patiently)
	if err != nil {
		return errors.Wrapf(b.failed(ctx, err), "read the tags of an object")
	}
	all := url.Values{}
	for _, t := range tags.TagSet {
		all.Set(aws.ToString(t.Key), aws.ToString(t.Value))
	}
	h[taggingHeader] = []string{strings.ReplaceAll(all.Encode(), "+", "%20")}
	return nil
}

// userMeta returns the user metadata in h in the SDK's form.
func userMeta(h http.Header) map[string]string {
	meta := map[string]string{}
	for k, v := range h {
		if name, ok := strings.CutPrefix(k, metaPrefix); ok {
			meta[strings.ToLower(name)] = v[0]
		}
	}
	return meta
}

// field1 returns a header's value, or nil.
func field1(h http.Header, name string) *string {
	if v := h[name]; len(v) > 0 {
		return &v[0]
	}
	return nil
}

// expiry returns the time in the header Expires, or nil.
func expiry(h http.Header) *time.Time {
	at, err := http.ParseTime(h.Get("Expires"))
	if err != nil {
		return nil
	}
	return &at
}

// MetaHeader returns the metadata in the form of other tools: rclone and s3fs use the short names,
// AWS's own services the long ones (design: s3.md, section 4). All of them read a mode with a
// leading zero the same way.
func MetaHeader(e *tree.Entry) http.Header {
	mode := "0" + strconv.FormatUint(uint64(e.TypeBits()|e.Mode), 8)
	uid, gid := strconv.FormatUint(uint64(e.UID), 10), strconv.FormatUint(uint64(e.GID), 10)
	h := http.Header{
		"X-Amz-Meta-Mode":             {mode},
		"X-Amz-Meta-Uid":              {uid},
		"X-Amz-Meta-Gid":              {gid},
		metaMtime:                     {e.ModTime.Decimal()},
		"X-Amz-Meta-File-Permissions": {mode},
		"X-Amz-Meta-File-Owner":       {uid},
		"X-Amz-Meta-File-Group":       {gid},
		"X-Amz-Meta-File-Mtime":       {e.ModTime.Nanoseconds() + "ns"},
		"Content-Type":                {contentType(e.Path)},
	}
	if e.Kind == tree.Dir {
		h["Content-Type"] = []string{"application/x-directory"}
	}
	return h
}

// contentType returns the content type for a file name.
func contentType(name string) string {
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	return "application/octet-stream"
}

// Describe reads mode, owner and time from the headers of an object. It knows the formats of AWS's
// own services, Harvest, s3fs and rclone. Missing and invalid values leave the entry unchanged. Headers have no
// attributes.
func Describe(e *tree.Entry, h http.Header) {
	e.Unknown &= tree.FactXattrs
	meta := func(names ...string) string {
		for _, name := range names {
			if v := h.Get("X-Amz-Meta-" + name); v != "" {
				return v
			}
		}
		return ""
	}
	if t, err := http.ParseTime(h.Get("Last-Modified")); err == nil && e.ModTime == (tree.Time{}) {
		e.ModTime = tree.At(t)
	}
	if mode, ok := parseMode(meta("File-Permissions"), meta("Mode")); ok {
		e.Mode = mode & 0o7777
		switch mode & unix.S_IFMT {
		case unix.S_IFLNK:
			e.Kind, e.Mode, e.Size, e.Unknown = tree.Symlink, 0o777, 0, 0
		case 0, unix.S_IFREG, unix.S_IFDIR:
		}
	}
	if v, err := strconv.ParseUint(meta("File-Owner", "Uid"), 10, 32); err == nil {
		e.UID = uint32(v)
	}
	if v, err := strconv.ParseUint(meta("File-Group", "Gid"), 10, 32); err == nil {
		e.GID = uint32(v)
	}
	if t, ok := tree.ParseTime(meta("File-Mtime", "Mtime")); ok {
		e.ModTime = t
	}
}

// parseMode parses a mode: AWS's format, or octal with a leading zero, rclone's octal without one,
// or s3fs's decimal.
func parseMode(permissions, mode string) (uint32, bool) {
	for _, text := range []string{permissions, mode} {
		if text == "" {
			continue
		}
		if strings.HasPrefix(text, "0") {
			if v, err := strconv.ParseUint(text, 8, 32); err == nil {
				return uint32(v), true
			}
			continue
		}
		if text == "41471" { // s3fs's symbolic link; in octal it would be an odd directory
			return unix.S_IFLNK | 0o777, true
		}
		// "100644" and "40755" are octal modes with a type; in decimal they would have no valid
		// type.
		if v, err := strconv.ParseUint(text, 8, 32); err == nil && (v>>12 == 0o4 || v>>12 == 0o10 || v>>12 == 0o12 ||
			v <= 0o7777 && len(text) <= 4) {
			return uint32(v), true
		}
		if v, err := strconv.ParseUint(text, 10, 32); err == nil {
			return uint32(v), true
		}
	}
	return 0, false
}

// ContentLength returns the length that a header has, or -1.
func ContentLength(h http.Header) int64 {
	var n int64
	text := h.Get("Content-Length")
	if text == "" {
		return -1
	}
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' || n > 1<<50 {
			return -1
		}
		n = n*10 + int64(text[i]-'0')
	}
	return n
}
