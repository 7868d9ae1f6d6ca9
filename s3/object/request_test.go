package object

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/RelevanceAI/harvest/s3/object/wire"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// oddText is up to n characters that keys, queries and header values rarely have.
func oddText(random *rand.Rand, n int) string {
	odd := []rune("abcXYZ019-_.~/ +%?#&=:;,@!$'()*[]{}|^`\"\\<>\u00fc\u00e9\u00df\u20ac\U0001f600e\u0301")
	var b strings.Builder
	for range random.IntN(n + 1) {
		b.WriteRune(odd[random.IntN(len(odd))])
	}
	return b.String()
}

// TestSignedAsTheSDK checks that requests get the same signature as from the SDK, for any keys, queries, headers and
// credentials.
// mission: 2.7, 9.3
func TestSignedAsTheSDK(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 9))
	theirs := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	var ours wire.Signer
	for i := range 3000 {
		r := Request{Method: []string{"GET", "PUT", "HEAD", "DELETE", "POST"}[random.IntN(5)], Key: oddText(random, 60),
			header: http.Header{}}
		if random.IntN(3) == 0 {
			r.Query = url.Values{"partNumber": {fmt.Sprint(random.IntN(10000))}, "uploadId": {oddText(random, 30)},
				"x": {oddText(random, 3)}}
		}
		if random.IntN(2) == 0 {
			r.Body = make([]byte, random.IntN(3))
			crc := random.Uint64()
			r.Crc, r.header = &crc, MetaHeader(&tree.Entry{Kind: tree.File, Mode: random.Uint32() & 0o7777,
				UID: random.Uint32(), ModTime: tree.Nano(random.Int64())})
		}
		for range random.IntN(3) {
			r.header.Set([]string{"If-Match", "Range", "X-Amz-Checksum-Mode", "X-Amz-Meta-Odd_name", "Content-Type",
				"X-Amz-Acl"}[random.IntN(6)], oddText(random, 12)+"  two")
		}
		if random.IntN(9) == 0 {
			r.header["X-Amz-Meta-Twice"] = []string{" one ", "two"}
		}
		// The SDK takes a secret to be that of its key's id for as long as a day.
		c := aws.Credentials{AccessKeyID: fmt.Sprintf("AK%d", i), SecretAccessKey: oddText(random, 40) + "S"}
		if random.IntN(2) == 0 {
			c.SessionToken = oddText(random, 50)
		}
		if i%3 > 0 { // the same key as often as not
			c.AccessKeyID, c.SecretAccessKey = "AK", "the same"
		}
		region := []string{"us-east-1", "eu-central-1", "auto"}[random.IntN(3)]
		at := time.Unix(1_700_000_000+random.Int64N(3*24*3600), 0).In(time.FixedZone("x", random.IntN(7)*3600))
		base, err := url.Parse([]string{"http://127.0.0.1:9000/bucket", "https://bucket.s3.amazonaws.com",
			"http://host:80/a%20b/bucket", "https://[::1]:8443/bucket/", "https://host:443"}[random.IntN(5)])
		must(t, err)
		b := &Bucket{base: base, prefix: "work/"}
		one, two := b.request(context.Background(), &r), b.request(context.Background(), &r)
		if one.URL.RequestURI() != two.URL.RequestURI() || one.Host != two.Host {
			t.Fatal("a request is not the same twice")
		}
		ours.Sign(one, c, region, at)
		must(t, theirs.SignHTTP(t.Context(), c, two, wire.Unsigned, "s3", region, at))
		for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token"} {
			if got, want := one.Header.Get(name), two.Header.Get(name); got != want {
				t.Fatalf("%s %s %q:\n%s is %q\nwant    %q", one.Method, one.URL, one.Header, name, got, want)
			}
		}
		if one.Host != two.Host || one.URL.RequestURI() != two.URL.RequestURI() {
			t.Fatalf("the SDK sends it to %q, %q, and this to %q, %q", two.Host, two.URL.RequestURI(), one.Host,
				one.URL.RequestURI())
		}
	}
}
