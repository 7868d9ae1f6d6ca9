package broker

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/image/trust"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// awsWorld returns a world with a real S3 server, whose bucket "name" is empty, and the sandbox's placeholders.
func awsWorld(t *testing.T, name string) (*world, aws.Credentials) {
	t.Helper()
	server, err := url.Parse(s3test.Named(t, name))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, binding.Binding{})
	held := w.pairs(bound(t, host+" sigv4 s3 us-east-1"), false)
	for i := range w.credentials {
		switch c := &w.credentials[i]; c.Key {
		case "AWS_ACCESS_KEY_ID":
			c.Value = s3test.AccessKey
		case "AWS_SECRET_ACCESS_KEY":
			c.Value = s3test.SecretKey
		}
	}
	// The server leaves the end of a chunked body with a trailer unread, and takes it for the next request.
	w.serve(t, &httputil.ReverseProxy{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(server)
			r.Out.Host = r.In.Host
			r.Out.URL.RawQuery = r.In.URL.RawQuery
		}})
	return w, held
}

// proxy starts a proxy whose tunnels are connections of the sandbox, and returns its address.
func (w *world) proxy(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil || r.Host != host+":443" {
					_ = c.Close()
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
				w.Serve(w.sandbox, &engine.Intercepted{Conn: c, Interception: intercepted})
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// program returns a function that runs a program of the sandbox, and returns its output.
func (w *world) program(t *testing.T, held aws.Credentials) func(name string, args ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	bundle := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(bundle, []byte(w.sandbox.Authority.PEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "HTTPS_PROXY=" + w.proxy(t),
		"AWS_ACCESS_KEY_ID=" + held.AccessKeyID, "AWS_SECRET_ACCESS_KEY=" + held.SecretAccessKey,
		"AWS_REGION=us-east-1", "AWS_DEFAULT_REGION=us-east-1", "AWS_EC2_METADATA_DISABLED=true",
		"AWS_MAX_ATTEMPTS=1", "LC_ALL=C.UTF-8"}
	for name, value := range trust.Env(bundle) {
		env = append(env, name+"="+value)
	}
	return func(name string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env, cmd.Dir = env, dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// installed returns the programs with a name in all directories of the search path.
func installed(name string) []string {
	var all []string
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/bin") {
		// /bin is often a link. The program may be one, too, that is named by its first argument.
		real, err := filepath.EvalSymlinks(dir)
		path := filepath.Join(real, name)
		if err != nil || slices.Contains(all, path) {
			continue
		}
		if _, err := exec.LookPath(path); err == nil {
			all = append(all, path)
		}
	}
	return all
}

// large makes a file that clients upload in several parts, and returns its path.
func large(t *testing.T) string {
	t.Helper()
	b := make([]byte, 17<<20+5)
	_, _ = rand.Read(b)
	path := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAWSCommandLine runs each installed aws.
func TestAWSCommandLine(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	tried := 0
	for _, program := range installed("aws") {
		bucket := "cli" + string(rune('a'+tried))
		w, held := awsWorld(t, bucket)
		run := w.program(t, held)
		if _, err := run(program, "--version"); err != nil {
			continue
		}
		tried++
		file := large(t)
		at, s3api := "s3://"+bucket+"/dir/a b+(c)é.bin", []string{"--endpoint-url", "https://" + host}
		copyTo := func(from, to string) []string { return []string{"s3", "cp", "--no-progress", from, to} }
		for _, args := range [][]string{
			copyTo(file, at), {"s3", "ls", "s3://" + bucket + "/dir/"}, copyTo(at, file+".back"),
			copyTo(at, "s3://"+bucket+"/copy"), {"s3api", "head-object", "--bucket", bucket, "--key", "copy"},
			{"configure", "set", "default.s3.payload_signing_enabled", "true"}, copyTo(file, "s3://"+bucket+"/signed"),
			{"s3api", "put-object", "--bucket", bucket, "--key", "one", "--body", file, "--metadata", "a=b  c"},
			{"s3", "rm", "--recursive", "s3://" + bucket + "/dir"},
		} {
			if out, err := run(program, append(args, s3api...)...); err != nil {
				t.Errorf("%s %v: %v: %s", program, args, err, out)
			}
		}
		sent, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{file + ".back", filepath.Join(s3test.Dir(bucket), "copy"),
			filepath.Join(s3test.Dir(bucket), "signed"), filepath.Join(s3test.Dir(bucket), "one")} {
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%s: %s has %d bytes, %v", program, path, len(got), err)
			}
		}
		held.SecretAccessKey += "x"
		out, err := w.program(t, held)(program, append([]string{"s3", "ls", "s3://" + bucket}, s3api...)...)
		if err == nil || !strings.Contains(out, "AWS_SECRET_ACCESS_KEY of the secret aws") {
			t.Errorf("%s with another key: %v: %s", program, err, out)
		}
	}
	if tried == 0 {
		t.Skip("aws is missing: run tools/scripts/deps")
	}
}

const botoScript = `
import sys, boto3, botocore, urllib.request
from botocore.config import Config
bucket, endpoint, file = sys.argv[1:]
print("boto3", boto3.__version__)
body = open(file, "rb").read()
for name, config in {"default": {}, "signed": {"s3": {"payload_signing_enabled": True}}}.items():
    c = boto3.client("s3", endpoint_url=endpoint, config=Config(**config))
    v4 = boto3.client("s3", endpoint_url=endpoint, config=Config(signature_version="s3v4"))
    for key in [name, name + "-1/a b+(c)é&=?#%41~", name + "-2/d//e"]:
        c.put_object(Bucket=bucket, Key=key, Body=b"text", Metadata={"a": " b  c "}, ContentType="text/plain")
        got = c.get_object(Bucket=bucket, Key=key)
        assert got["Body"].read() == b"text" and got["Metadata"]["a"].strip() == "b  c", (key, got)
    c.upload_file(file, bucket, name + "-large")
    assert c.get_object(Bucket=bucket, Key=name + "-large")["Body"].read() == body
    assert c.get_object(Bucket=bucket, Key=name + "-large", Range="bytes=3-9")["Body"].read() == body[3:10]
    keys = [o["Key"] for o in c.list_objects_v2(Bucket=bucket, Prefix=name)["Contents"]]
    assert len(keys) >= 3, keys
    c.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": k} for k in keys]})
    assert "Contents" not in c.list_objects_v2(Bucket=bucket, Prefix=name)
    put = v4.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "pre signed"}, ExpiresIn=60)
    r = urllib.request.Request(put, data=b"presigned", method="PUT")
    r.add_header("Content-Type", "")
    urllib.request.urlopen(r).read()
    get = v4.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "pre signed"})
    assert urllib.request.urlopen(get).read() == b"presigned"
old = boto3.client("s3", endpoint_url=endpoint, config=Config(signature_version="s3"))
try:
    urllib.request.urlopen(old.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "x"}))
    raise SystemExit("a signature of version 2 passes")
except urllib.error.HTTPError as e:
    assert e.code == 403 and b"s3v4" in e.read(), e
print("done")
`

// TestBoto3 runs each Python that has boto3.
func TestBoto3(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	tried := 0
	for _, program := range installed("python3") {
		bucket := "boto" + string(rune('a'+tried))
		w, held := awsWorld(t, bucket)
		run := w.program(t, held)
		if _, err := run(program, "-c", "import boto3"); err != nil {
			continue
		}
		tried++
		out, err := run(program, "-c", botoScript, bucket, "https://"+host, large(t))
		if err != nil || !strings.HasSuffix(out, "done\n") {
			t.Errorf("%s: %v: %s", program, err, out)
		}
		t.Logf("%s: %s", program, out)
	}
	if tried == 0 {
		t.Skip("boto3 is missing: run tools/scripts/deps")
	}
}

const botoServices = `
import sys, boto3
c = lambda name: boto3.client(name, endpoint_url=sys.argv[1])
if sys.argv[2] == "lambda":
    c("lambda").list_tags(Resource="arn:aws:lambda:us-east-1:123456789012:function:f")
    c("lambda").invoke(FunctionName="f", Payload=b'{"a": "b"}')
elif sys.argv[2] == "dynamodb":
    c("dynamodb").get_item(TableName="table", Key={"id": {"S": "é"}})
else:
    c("sts").get_caller_identity()
print("done")
`

// TestBoto3Services runs each Python that has boto3 for services whose signatures differ from those of S3.
func TestBoto3Services(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	for _, program := range installed("python3") {
		for _, service := range []string{"lambda", "dynamodb", "sts"} {
			w := newWorld(t, binding.Binding{})
			run := w.program(t, w.pairs(bound(t, host+" sigv4"), false))
			w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				checked := httptest.NewRecorder()
				checkSigned{service, "us-east-1", false}.ServeHTTP(checked, r)
				if checked.Code != http.StatusOK {
					http.Error(rw, checked.Body.String(), checked.Code)
				} else if service == "sts" {
					_, _ = io.WriteString(rw,
						"<GetCallerIdentityResponse><GetCallerIdentityResult/></GetCallerIdentityResponse>")
				} else {
					_, _ = io.WriteString(rw, "{}")
				}
			}))
			if _, err := run(program, "-c", "import boto3"); err != nil {
				continue
			}
			if out, err := run(program, "-c", botoServices, "https://"+host, service); err != nil || out != "done\n" {
				t.Errorf("%s, %s: %v: %s", program, service, err, out)
			}
		}
	}
}

// TestCurl signs with curl.
func TestCurl(t *testing.T) {
	t.Parallel()
	w, held := awsWorld(t, "curl")
	run := w.program(t, held)
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is missing: run tools/scripts/deps")
	}
	at := "https://" + host + "/curl"
	for _, args := range [][]string{
		{"-X", "PUT", "--data-binary", "text", "-H", "X-Amz-Content-Sha256: " + hashOf("text"), at + "/dir/a%20b"},
		{"-X", "PUT", "--data-binary", "text", "-H", "X-Amz-Content-Sha256: UNSIGNED-PAYLOAD", at + "/dir/b"},
		{"-H", "X-Amz-Content-Sha256: " + emptyHash, at + "/dir/a%20b"},
		{"-H", "X-Amz-Content-Sha256: " + emptyHash, at + "?delimiter=%2F&list-type=2&prefix=d"},
	} {
		if out, err := run("curl", append([]string{"-sS", "--fail-with-body", "--cacert", "ca.pem", "--aws-sigv4",
			"aws:amz:us-east-1:s3", "--user", held.AccessKeyID + ":" + held.SecretAccessKey}, args...)...); err != nil {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
}

// TestRclone checks that the variables of sandboxes suit a program with its own transport.
func TestRclone(t *testing.T) {
	t.Parallel()
	w, held := awsWorld(t, "rclone")
	run := w.program(t, held)
	if _, err := exec.LookPath("rclone"); err != nil {
		t.Skip("rclone is missing: run tools/scripts/deps")
	}
	file := large(t)
	at := ":s3,provider=Other,env_auth=true,endpoint='https://" + host + "',region=us-east-1,force_path_style=true," +
		"no_check_bucket=true,upload_cutoff=5M:rclone/a b+(c)é"
	for _, args := range [][]string{{file, at}, {at, file + ".back"}} {
		if out, err := run("rclone", append([]string{"--retries", "1", "--low-level-retries", "1", "copyto"},
			args...)...); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	want, _ := os.ReadFile(file)
	if got, err := os.ReadFile(file + ".back"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

// TestGoSDK uses the SDK of Go as a client.
func TestGoSDK(t *testing.T) {
	t.Parallel()
	for i, protocol := range []string{"h2", "http/1.1"} {
		bucket := "gosdk" + string(rune('a'+i))
		w, held := awsWorld(t, bucket)
		c := s3.New(s3.Options{BaseEndpoint: aws.String("https://" + host), Region: "us-east-1", UsePathStyle: true,
			Credentials: credentials.NewStaticCredentialsProvider(held.AccessKeyID, held.SecretAccessKey, ""),
			HTTPClient:  w.client(t, protocol)})
		file := large(t)
		body, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		want, _ := os.ReadFile(file)
		key := aws.String("dir/a b+(c)é%41")
		if _, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: key, Body: body}); err != nil {
			t.Fatalf("%s: %v", protocol, err)
		}
		got, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: key})
		if err != nil {
			t.Fatalf("%s: %v", protocol, err)
		}
		if b, err := io.ReadAll(got.Body); err != nil || !bytes.Equal(b, want) {
			t.Errorf("%s: got %d bytes, %v", protocol, len(b), err)
		}
		_ = got.Body.Close()
		address, err := s3.NewPresignClient(c).PresignGetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket,
			Key: key})
		if err != nil {
			t.Fatal(err)
		}
		if status, got := get(t, w.client(t, protocol), "GET", address.URL, nil); status != 200 || got != string(want) {
			t.Errorf("%s: presigned: got %d, %d bytes", protocol, status, len(got))
		}
	}
}
