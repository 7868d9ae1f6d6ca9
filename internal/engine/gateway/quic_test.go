package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

// The examples of RFC 9001, appendix A.1, and RFC 9369, appendix A.1.
func TestQUICKeys(t *testing.T) {
	t.Parallel()
	for n, want := range [][3]string{
		{"1f369613dd76d5467730efcbe3b1a22d", "fa044b2f42a3fd3b46fb255c", "9f50449e04a0e810283a1e9933adedd2"},
		{"8b1a0bc121284290a29e0971b5cd045d", "91f73e2351d8fa91660e909f", "45b95e15235d6f45a6b19cbcb0294ba9"},
	} {
		v := &quicVersions[n]
		dcid, _ := hex.DecodeString("8394c8f03e515708")
		secret := mustQUIC(t, v, string(dcid))
		for i, label := range []string{v.key, v.iv, v.hp} {
			got, err := expandLabel(secret, label, len(want[i])/2)
			if err != nil || hex.EncodeToString(got) != want[i] {
				t.Errorf("version %x, %s: %x, %v", v.number, label, got, err)
			}
		}
	}
}

func mustQUIC(t testing.TB, v *quicVersion, dcid string) []byte {
	t.Helper()
	secret, err := clientSecret(v, dcid)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// quicHello returns the ClientHello that Go's TLS makes for QUIC.
func quicHello(t testing.TB, name string) []byte {
	t.Helper()
	c := tls.QUICClient(&tls.QUICConfig{TLSConfig: &tls.Config{ServerName: name, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, NextProtos: []string{"h3"}}})
	defer c.Close()
	c.SetTransportParameters([]byte{1, 1, 1})
	if err := c.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	for {
		switch e := c.NextEvent(); e.Kind {
		case tls.QUICWriteData:
			return bytes.Clone(e.Data)
		case tls.QUICNoEvent:
			t.Fatal("no ClientHello")
		}
	}
}

func varint(n int) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(n)|2<<30)
}

func crypto(offset int, data []byte) []byte {
	return append(append(append([]byte{6}, varint(offset)...), varint(len(data))...), data...)
}

// initialPacket protects frames as the client's Initial packet. The keys belong to the connection id key, which is dcid
// at first.
func initialPacket(t testing.TB, v *quicVersion, dcid, key string, number uint32, frames []byte) []byte {
	t.Helper()
	k, err := newQUICKeys(v, key)
	if err != nil {
		t.Fatal(err)
	}
	frames = append(frames, make([]byte, max(0, 1000-len(frames)))...) // PADDING
	head := []byte{0xc0 | v.initial<<4 | 3}
	head = binary.BigEndian.AppendUint32(head, v.number)
	head = append(append(head, byte(len(dcid))), dcid...)
	head = append(head, 2, 'c', 'l')
	head = append(head, 0)
	head = append(head, varint(4+len(frames)+16)...)
	at := len(head)
	head = binary.BigEndian.AppendUint32(head, number)
	nonce := bytes.Clone(k.iv)
	for n := range 4 {
		nonce[8+n] ^= head[at+n]
	}
	pkt := k.aead.Seal(head, nonce, frames, head)
	var mask [16]byte
	k.hp.Encrypt(mask[:], pkt[at+4:at+20])
	pkt[0] ^= mask[0] & 0x0f
	for n := range 4 {
		pkt[at+n] ^= mask[1+n]
	}
	return pkt
}

func decideOn(name string, _ uint16) Verdict {
	if name == "good.org" {
		return Verdict{Allowed: true}
	}
	return deny("the connection names " + name + ", which no rule allows")
}

// mission: A6
func TestQUICIsReadForNames(t *testing.T) {
	t.Parallel()
	v1, v2 := &quicVersions[0], &quicVersions[1]
	good, bad := quicHello(t, "good.org"), quicHello(t, "bad.org")
	first := initialPacket(t, v1, "abcdefgh", "abcdefgh", 0, crypto(0, good))
	half := len(good) / 2
	short := append([]byte{0x40}, make([]byte, 50)...)
	handshake := append([]byte{0xe0, 0, 0, 0, 1, 8, 's', 'e', 'r', 'v', 'e', 'r', 'i', 'd', 2, 'c', 'l'},
		append(varint(30), make([]byte, 30)...)...)
	later := initialPacket(t, v1, "serverid", "abcdefgh", 2, append([]byte{2}, bytes.Repeat(varint(0), 4)...))
	retried := initialPacket(t, v1, "retryid!", "retryid!", 3, crypto(0, good))
	for _, test := range []struct {
		name      string
		port      uint16
		datagrams [][]byte
		refused   string // part of the reason
		held      int    // datagrams that are not forwarded
	}{
		{"one packet", 443, [][]byte{first, short, handshake, later}, "", 0},
		{"version 2", 443, [][]byte{initialPacket(t, v2, "abcdefgh", "abcdefgh", 0, crypto(0, good))}, "", 0},
		{"after a retry", 443, [][]byte{first, retried, short}, "", 0},
		{"two packets in the wrong order", 443,
			[][]byte{initialPacket(t, v1, "abcdefgh", "abcdefgh", 0, crypto(half, good[half:])),
				initialPacket(t, v1, "abcdefgh", "abcdefgh", 1, append([]byte{1, 0}, crypto(0, good[:half])...)),
				short}, "", 0},
		{"in one datagram", 443, [][]byte{append(bytes.Clone(first), handshake...),
			append(bytes.Clone(handshake), later...)}, "", 0},
		{"one half", 443, [][]byte{initialPacket(t, v1, "abcdefgh", "abcdefgh", 0, crypto(0, good[:half])),
			short}, "", 2},
		{"another name", 443, [][]byte{initialPacket(t, v1, "abcdefgh", "abcdefgh", 0, crypto(0, bad))}, "bad.org", 0},
		{"another name, version 2, another port", 8443,
			[][]byte{initialPacket(t, v2, "abcdefgh", "abcdefgh", 0, crypto(0, bad))}, "bad.org", 0},
		{"another connection on the flow", 443,
			[][]byte{first, short, initialPacket(t, v1, "ABCDEFGH", "ABCDEFGH", 0, crypto(0, bad))}, "bad.org", 0},
		{"the name hidden behind what came first", 443,
			[][]byte{initialPacket(t, v1, "abcdefgh", "abcdefgh", 0, crypto(0, bad[:half])),
				initialPacket(t, v1, "abcdefgh", "abcdefgh", 1, append(crypto(0, good), crypto(half, bad[half:])...))},
			"",
			-1},
		{"no QUIC", 443, [][]byte{[]byte("hello")}, "use TCP", 0},
		{"an unknown version", 443, [][]byte{append([]byte{0xc0, 0xff, 0, 0, 29}, first[5:]...)}, "use TCP", 0},
		{"a packet that cannot be read", 443, [][]byte{append(bytes.Clone(first[:40]), make([]byte, len(first)-40)...)},
			"cannot be read", 0},
		{"frames that make no sense", 443, [][]byte{initialPacket(t, v1, "abcdefgh", "abcdefgh", 0, []byte{0x3f})},
			"cannot be read", 0},
		{"an endless hello", 443, [][]byte{initialPacket(t, v1, "abcdefgh", "abcdefgh", 0, crypto(1<<20, []byte{1}))},
			"cannot be read", 0},
		{"a hello that is none", 443, [][]byte{initialPacket(t, v1, "abcdefgh", "abcdefgh", 0,
			crypto(0, []byte{9, 0, 0, 1, 0}))}, "cannot be read", 0},
		{"a bad acknowledgement", 443, [][]byte{initialPacket(t, v1, "abcdefgh", "abcdefgh", 0,
			append([]byte{3}, bytes.Repeat(varint(5000), 3)...))}, "cannot be read", 0},
		{"closed at once", 443, [][]byte{initialPacket(t, v1, "abcdefgh", "abcdefgh", 0, []byte{0x1c})}, "", 1},
		{"no QUIC elsewhere", 123, [][]byte{[]byte("hello"), []byte("world")}, "", 0},
	} {
		d := NewDatagramInspector(CheckAllowed, test.port, decideOn)
		sent := 0
		var err error
		for _, p := range test.datagrams {
			var out [][]byte
			if out, err = d.Next(p); err != nil {
				break
			}
			for _, b := range out {
				if !bytes.Equal(b, test.datagrams[sent]) {
					t.Errorf("%s: datagram %d was changed", test.name, sent)
				}
				sent++
			}
		}
		var refusal *Refusal
		switch {
		case test.held < 0: // both names are seen, or no datagram is forwarded
			if err == nil && sent > 0 {
				t.Errorf("%s: %d datagrams went on", test.name, sent)
			}
		case test.refused == "" && (err != nil || sent != len(test.datagrams)-test.held):
			t.Errorf("%s: %d of %d went on, %v", test.name, sent, len(test.datagrams), err)
		case test.refused != "" && (!errors.As(err, &refusal) || !strings.Contains(err.Error(), test.refused)):
			t.Errorf("%s: %v, want %q", test.name, err, test.refused)
		}
	}
}

func TestQUICBounds(t *testing.T) {
	t.Parallel()
	v := &quicVersions[0]
	d := NewDatagramInspector(CheckAllowed, 443, decideOn)
	var err error
	for n := 0; n <= maxHeldDatagrams && err == nil; n++ {
		_, err = d.Next(initialPacket(t, v, "abcdefgh", "abcdefgh", uint32(n), []byte{1}))
	}
	if err == nil || !strings.Contains(err.Error(), "in time") {
		t.Errorf("an endless beginning: %v", err)
	}
	d = NewDatagramInspector(CheckAllowed, 443, decideOn)
	hello := crypto(0, quicHello(t, "good.org"))
	for n := 0; n <= maxQUICConnections; n++ {
		id := string(append([]byte("abcdefg"), byte(n)))
		if _, err = d.Next(initialPacket(t, v, id, id, 0, hello)); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("endless connections: %v", err)
	}
	d = NewDatagramInspector(CheckNothing, 443, decideOn)
	if out, err := d.Next([]byte("hello")); err != nil || len(out) != 1 {
		t.Errorf("without a check: %v", err)
	}
	d = NewDatagramInspector(CheckDenied, 443, decideOn)
	if out, err := d.Next([]byte("hello")); err != nil || len(out) != 1 {
		t.Errorf("no QUIC where only denied names matter: %v", err)
	}
}

func FuzzDatagramInspector(f *testing.F) {
	hello := quicHello(f, "good.org")
	f.Add(initialPacket(f, &quicVersions[0], "abcdefgh", "abcdefgh", 0, crypto(0, hello)), []byte("hello"))
	f.Add(initialPacket(f, &quicVersions[1], "abcdefgh", "abcdefgh", 0, crypto(5, hello)), []byte{0x40})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		for _, check := range []Check{CheckAllowed, CheckDenied} {
			d := NewDatagramInspector(check, 443, decideOn)
			for _, p := range [][]byte{a, b, a} {
				if _, err := d.Next(p); err != nil {
					break
				}
			}
		}
	})
}

// FuzzQUICFrames fuzzes the frames behind the encryption.
func FuzzQUICFrames(f *testing.F) {
	f.Add(crypto(0, quicHello(f, "bad.org")))
	f.Add([]byte{2, 0, 0, 0, 0, 6, 0, 1, 1})
	f.Fuzz(func(t *testing.T, frames []byte) {
		d := NewDatagramInspector(CheckAllowed, 443, decideOn)
		_ = d.gather(&quicConn{}, frames)
	})
}
