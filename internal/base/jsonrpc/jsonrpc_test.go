package jsonrpc

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReadLines checks that only the content of a line that is too long is lost.
func TestReadLines(t *testing.T) {
	t.Parallel()
	var got []string
	long := strings.Repeat("x", 200<<10)
	ReadLines(strings.NewReader("a\n"+long+"\n\n b \r\n"+long[:100]+"\n"+long), 100<<10, func(in Line) {
		if in.Cut {
			got = append(got, "cut")
			return
		}
		got = append(got, fmt.Sprint(len(in.Text), " ", in.Cut))
	})
	if diff := cmp.Diff([]string{"1 false", "cut", "1 false", "100 false", "cut"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestDecodeIsLenient checks that a field of an unexpected type does not take the others with it.
func TestDecodeIsLenient(t *testing.T) {
	t.Parallel()
	var v struct {
		A int
		B string
	}
	if !Decode([]byte(`{"a":"seven","b":"text"}`), &v) || v.B != "text" || v.A != 0 {
		t.Errorf("%+v", v)
	}
	for _, bad := range []string{"", `{"b"`} {
		if Decode([]byte(bad), &v) {
			t.Errorf("%q was decoded", bad)
		}
	}
}

// TestFailure checks the text and the code of an error, whose code may be of any type.
func TestFailure(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`{"id":1,"error":{"code":-32000,"message":"m","data":{"details":"d"}}}`: "m: d",
		`{"id":1,"error":{"code":"-32000","message":"m","data":"d"}}`:           "m",
		`{"id":1,"error":{"code":-32000}}`:                                      "error -32000",
	} {
		m, ok := Parse([]byte(line))
		f, failed := m.Failed()
		if !ok || !failed || f.Text() != want || !f.Is(AuthRequired) {
			t.Errorf("%s: %q", line, f.Text())
		}
	}
	if m, _ := Parse([]byte(`{"id":1,"error":null,"result":{}}`)); len(m.Error) == 0 {
		t.Error("the error is lost")
	} else if _, failed := m.Failed(); failed {
		t.Error("null is an error")
	}
}

// FuzzParse checks that any input is read to its end, and that what was parsed can be sent again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}` + "\n{\"id\":\"a\"}\n"))
	f.Add([]byte(`{"id":null,"error":{"code":429,"message":"m","data":{"message":"d"}}}`))
	f.Add([]byte("\xff\n{\n\n[]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 200
		ReadLines(bytes.NewReader(data), limit, func(in Line) {
			if len(in.Text) > limit {
				t.Fatalf("a line of %d bytes", len(in.Text))
			}
			m, ok := Parse(in.Text)
			if !ok {
				return
			}
			if failure, failed := m.Failed(); failed && failure.Text() == "" {
				t.Errorf("%s: no text", in.Text)
			}
			for _, line := range [][]byte{NewRequest(m.ID, m.Method, m.Params), NewAnswer(m.ID, m.Result)} {
				if bytes.Count(line, []byte("\n")) != 1 || !bytes.HasSuffix(line, []byte("\n")) {
					t.Errorf("%s: %q is not a line", in.Text, line)
				}
			}
		})
	})
}
