package volsync

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// TestServersWithoutCRC64 checks that a server without CRC-64/NVME refuses it once, and gets MD5s from then on, with
// which it verifies uploads.
// mission: 2.5, 3.5
func TestServersWithoutCRC64(t *testing.T) {
	testenv.Long(t)
	dir := t.TempDir()
	for i := range 10 {
		write(t, dir, fmt.Sprintf("f%d", i), strings.Repeat("x", i*100+1))
	}
	write(t, dir, "large", strings.Repeat("0123456789abcdef", 40<<16)) // 40 MiB
	age(t, dir)
	for code, status := range map[string]int{"NotImplemented": 501, "InvalidArgument": 400} {
		t.Run(code, func(t *testing.T) {
			loc := location(t)
			a := between(t, &loc)
			b := openBucket(t, loc)
			var refused, damaged, sums atomic.Int32
			a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get(object.ChecksumHeader) != "" ||
					r.Header.Get("X-Amz-Checksum-Algorithm") == "CRC64NVME" {
					_, _ = io.Copy(io.Discard, r.Body)
					refused.Add(1)
					return xmlFault(w, status, code)
				}
				if r.Method == http.MethodPut && r.Header.Get("Content-Md5") != "" && r.ContentLength > 0 {
					if sums.Add(1); strings.HasSuffix(r.URL.Path, "/f9") && damaged.Add(1) <= 2 {
						raw, _ := io.ReadAll(r.Body)
						raw[0] ^= 1
						r.Body = io.NopCloser(bytes.NewReader(raw))
					}
				}
				return false
			})
			state := t.TempDir()
			mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
			if n := refused.Load(); n == 0 || n > 12 {
				t.Errorf("%d requests were refused", n)
			}
			if sums.Load() < 14 || damaged.Load() < 3 {
				t.Errorf("%d requests had an MD5, %d of them the damaged one's", sums.Load(), damaged.Load())
			}
			back := t.TempDir()
			mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
			sameTrees(t, dir, back)
			refused.Store(0)
			write(t, dir, "f3", code)
			age(t, dir)
			mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
			if n := refused.Load(); n > 0 {
				t.Errorf("%d more requests were refused", n)
			}
		})
	}
	// A server that refuses both is reported with its reason.
	loc := location(t)
	a := between(t, &loc)
	b := openBucket(t, loc)
	a.reset(when("PUT", "work/", 400, "InvalidArgument"))
	stats, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up})
	if err != nil || stats.Failed != 11 || !strings.Contains(stats.Failures[0].Reason,
		"S3 refuses it (400 InvalidArgument)") {
		t.Errorf("refused for something else: %s, %+v, %v", stats, stats.Failures, err)
	}
	var sums atomic.Int32
	a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Content-Md5") != "" {
			sums.Add(1)
		}
		return false
	})
	mustSync(t, dir, b, Options{Direction: plan.Up})
	if n := sums.Load(); n > 0 {
		t.Errorf("%d requests had an MD5 for a server that accepts CRC-64/NVME", n)
	}
}

// TestChecksumsOfOthers checks that objects that other programs stored with other kinds of checksums are verified with
// these, small and large ones.
// mission: 3.5
func TestChecksumsOfOthers(t *testing.T) {
	testenv.Long(t)
	loc := location(t)
	a := between(t, &loc)
	b := openBucket(t, loc)
	want := map[string]string{}
	for _, kind := range []types.ChecksumAlgorithm{types.ChecksumAlgorithmCrc32, types.ChecksumAlgorithmCrc32c,
		types.ChecksumAlgorithmSha1, types.ChecksumAlgorithmSha256, types.ChecksumAlgorithmCrc64nvme} {
		for name, content := range map[string]string{"small": "content of " + string(kind),
			"large": strings.Repeat(fmt.Sprintf("%-16.16s", kind), 17<<16)} {
			name = string(kind) + "." + name
			want[name] = content
			key := b.Prefix() + name
			_, err := sdkOf(b).PutObject(t.Context(), &sdk.PutObjectInput{Bucket: &loc.Bucket, Key: &key,
				Body: strings.NewReader(content), ChecksumAlgorithm: kind})
			must(t, err)
		}
	}
	for _, times := range []int32{1, 1 << 20} {
		hits := map[string]*atomic.Int32{}
		for name := range want {
			hits["/"+loc.Bucket+"/"+b.Prefix()+name] = new(atomic.Int32)
		}
		a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
			n := hits[r.URL.Path]
			if !gets(r) || n == nil || n.Add(1) > times {
				return false
			}
			proxyOf(r).ServeHTTP(&flipping{ResponseWriter: w}, r)
			return true
		})
		back := t.TempDir()
		stats, err := Sync(t.Context(), openTree(t, back), b, Options{Direction: plan.Down})
		if err != nil || times > 1 && stats.Failed != int64(len(want)) || times == 1 && stats.Failed != 0 {
			t.Errorf("damaged %d times: %s, %+v, %v", times, stats, stats.Failures, err)
		}
		for name, content := range want {
			raw, err := os.ReadFile(filepath.Join(back, name))
			if (err == nil) != (times == 1) || err == nil && string(raw) != content {
				t.Errorf("%s, damaged %d times: %d bytes, %v", name, times, len(raw), err)
			}
		}
	}
}

// Deletions have a CRC-32, and an MD5 for servers that want that instead.
// mission: D1
func TestDeletionsWithMD5(t *testing.T) {
	for code, status := range map[string]int{"InvalidRequest": 400, "MissingContentMD5": 400,
		"NotImplemented": 501, "": 0} {
		t.Run(code, func(t *testing.T) {
			dir, loc := t.TempDir(), location(t)
			for _, f := range []string{"a", "b", "c"} {
				write(t, dir, f, f)
			}
			a := between(t, &loc)
			b := openBucket(t, loc)
			mustSync(t, dir, b, Options{Direction: plan.Up})
			b.Tune(object.Tuning{MD5: code == ""}) // known from before
			var refused, sums atomic.Int32
			a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if _, ok := r.URL.Query()["delete"]; !ok {
					return false
				}
				raw, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(raw))
				sum := md5.Sum(raw)
				if r.Header.Get("Content-Md5") != base64.StdEncoding.EncodeToString(sum[:]) ||
					r.Header.Get("X-Amz-Checksum-Crc32") != "" {
					refused.Add(1)
					return xmlFault(w, status, code)
				}
				sums.Add(1)
				return false
			})
			must(t, os.Remove(filepath.Join(dir, "a")))
			must(t, os.Remove(filepath.Join(dir, "b")))
			if stats := mustSync(t, dir, b, Options{Direction: plan.Up, Mirror: true}); stats.Deleted != 2 {
				t.Errorf("did %s", stats)
			}
			if sums.Load() != 1 || // of the tombstones: the objects are deleted one by one, with a condition
				(refused.Load() == 0) != (code == "") {
				t.Errorf("%d refused, %d with an MD5", refused.Load(), sums.Load())
			}
			a.reset(nil)
			if _, err := b.Stat(t.Context(), "a"); !errors.Is(err, errors.NotFound) {
				t.Errorf("a deleted object: %v", err)
			}
		})
	}
}

// TestChecksumsOfPartsOfOthers checks that an object that another program stored in parts has a checksum of the parts'
// checksums, and that the received data is compared with it if the server reports the size of the parts.
// mission: 3.5
func TestChecksumsOfPartsOfOthers(t *testing.T) {
	testenv.Long(t)
	loc := location(t)
	a := between(t, &loc)
	b := openBucket(t, loc)
	want := map[string]string{}
	for name, c := range map[string]struct {
		kind  types.ChecksumAlgorithm
		sizes []int
	}{
		"equal":   {types.ChecksumAlgorithmCrc32c, []int{5 << 20, 5 << 20, 1 << 20}},
		"one":     {types.ChecksumAlgorithmSha256, []int{5 << 20}},
		"unequal": {types.ChecksumAlgorithmCrc32, []int{5 << 20, 6 << 20, 3}},
		"large":   {types.ChecksumAlgorithmSha1, []int{8 << 20, 8 << 20, 8 << 20, 12345}},
	} {
		key := b.Prefix() + name
		up, err := sdkOf(b).CreateMultipartUpload(t.Context(), &sdk.CreateMultipartUploadInput{Bucket: &loc.Bucket,
			Key: &key, ChecksumAlgorithm: c.kind})
		must(t, err)
		var done []types.CompletedPart
		for i, n := range c.sizes {
			body := strings.Repeat(string(rune('a'+i)), n)
			want[name] += body
			number := int32(i + 1)
			p, err := sdkOf(b).UploadPart(t.Context(), &sdk.UploadPartInput{Bucket: &loc.Bucket, Key: &key,
				UploadId: up.UploadId, PartNumber: &number, Body: strings.NewReader(body), ChecksumAlgorithm: c.kind})
			must(t, err)
			done = append(done, types.CompletedPart{PartNumber: &number, ETag: p.ETag, ChecksumCRC32: p.ChecksumCRC32,
				ChecksumCRC32C: p.ChecksumCRC32C, ChecksumSHA1: p.ChecksumSHA1, ChecksumSHA256: p.ChecksumSHA256})
		}
		_, err = sdkOf(b).CompleteMultipartUpload(t.Context(), &sdk.CompleteMultipartUploadInput{Bucket: &loc.Bucket,
			Key: &key, UploadId: up.UploadId, MultipartUpload: &types.CompletedMultipartUpload{Parts: done}})
		must(t, err)
	}
	for name, c := range map[string]struct {
		damage bool // all that is sent
		silent bool // the server does not report the size of the parts
		failed int64
	}{"whole": {}, "damaged": {damage: true, failed: 4}, "whole, and nothing told": {silent: true},
		"damaged, and nothing told": {damage: true, silent: true}} {
		t.Run(name, func(t *testing.T) {
			a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Has("partNumber") {
					return c.silent && xmlFault(w, http.StatusNotImplemented, "NotImplemented")
				}
				if !c.damage || !gets(r) || strings.Contains(r.URL.Path, tree.Reserved) {
					return false
				}
				proxyOf(r).ServeHTTP(&flipping{ResponseWriter: w}, r)
				return true
			})
			back := t.TempDir()
			stats, err := Sync(t.Context(), openTree(t, back), b, Options{Direction: plan.Down})
			if err != nil || stats.Failed != c.failed {
				t.Errorf("%s, %+v, %v", stats, stats.Failures, err)
			}
			if c.damage {
				return
			}
			for name, content := range want {
				if raw, err := os.ReadFile(filepath.Join(back, name)); err != nil || string(raw) != content {
					t.Errorf("%s: %d bytes, %v", name, len(raw), err)
				}
			}
		})
	}
}
