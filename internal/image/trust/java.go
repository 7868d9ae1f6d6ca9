package trust

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // the checksum of the format
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"path"
	"slices"
	"time"
	"unicode/utf16"

	"software.sslmate.com/src/go-pkcs12"

	"github.com/RelevanceAI/harvest/client/errors"
)

// keystores are the files with the authorities that Java trusts, by the bundles of the distributions that have them.
var keystores = map[string]string{
	Bundle: "/etc/ssl/certs/java/cacerts", // of Debian and Alpine
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": "/etc/pki/ca-trust/extracted/java/cacerts", // of Fedora
}

// Keystores returns the files with the authorities that Java trusts, of an image with these bundles. home is the
// directory of an installation of Java, or "".
func Keystores(bundles []string, home string) (all []string) {
	for _, b := range bundles {
		if name := keystores[b]; name != "" {
			all = append(all, name)
		}
	}
	if path.IsAbs(home) {
		for _, dir := range []string{"lib", "jre/lib"} {
			all = append(all, path.Join(home, dir, "security/cacerts"))
		}
	}
	return all
}

// keystorePassword is the password of the keystores of Java and of distributions.
const keystorePassword = "changeit"

// alias returns a name for an authority in a keystore. Subjects are not unique, and Java keeps one entry of each name.
func alias(der []byte) string {
	sum := sha256.Sum256(der)
	return "authority-" + hex.EncodeToString(sum[:8])
}

// AddToKeystore returns a keystore of Java, of the format JKS or PKCS #12, with an authority, which is PEM. A keystore
// that has it already stays the same. Unsupported: the file is not a keystore, or has an unusual password.
func AddToKeystore(store []byte, authority string) ([]byte, error) {
	block, _ := pem.Decode([]byte(authority))
	if block == nil {
		return nil, errors.Errorf("an authority that is not PEM")
	}
	if bytes.Contains(store, block.Bytes) {
		return store, nil
	}
	if bytes.HasPrefix(store, jksMagic) {
		return addToJKS(store, block.Bytes)
	}
	return addToPKCS12(store, block.Bytes)
}

// jksMagic is the beginning of a keystore of the format JKS. The version and the count of entries follow.
var jksMagic = []byte{0xfe, 0xed, 0xfe, 0xed}

// jksHead is the length of the beginning with the version and the count.
const jksHead = 12

// addToJKS appends an entry, whose format is in the source of OpenJDK: sun.security.provider.JavaKeyStore.
func addToJKS(store, der []byte) ([]byte, error) {
	end := len(store) - sha1.Size
	if end < jksHead || binary.BigEndian.Uint32(store[4:]) != 2 || !bytes.Equal(jksSum(store[:end]), store[end:]) {
		return nil, errors.Newf(errors.Unsupported, "the keystore has an unknown format or password")
	}
	b := slices.Clone(store[:end])
	binary.BigEndian.PutUint32(b[8:], binary.BigEndian.Uint32(b[8:])+1)
	text := func(s string) {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
	}
	b = binary.BigEndian.AppendUint32(b, 2) // a trusted certificate
	text(alias(der))
	b = binary.BigEndian.AppendUint64(b, uint64(time.Now().UnixMilli()))
	text("X.509")
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(der))), der...)
	return append(b, jksSum(b)...), nil
}

// jksSum returns the checksum at the end of a keystore.
func jksSum(data []byte) []byte {
	h := sha1.New() //nolint:gosec // see above
	for _, unit := range utf16.Encode([]rune(keystorePassword)) {
		_, _ = h.Write(binary.BigEndian.AppendUint16(nil, unit))
	}
	_, _ = h.Write([]byte("Mighty Aphrodite"))
	_, _ = h.Write(data)
	return h.Sum(nil)
}

func addToPKCS12(store, der []byte) ([]byte, error) {
	own, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, errors.Wrapf(err, "read an authority")
	}
	for password, encoder := range map[string]*pkcs12.Encoder{"": pkcs12.Passwordless,
		keystorePassword: pkcs12.Modern} {
		certs, err := pkcs12.DecodeTrustStore(store, password)
		switch {
		case err != nil:
			continue
		case slices.ContainsFunc(certs, own.Equal):
			return store, nil
		}
		var entries []pkcs12.TrustStoreEntry
		for _, c := range append(certs, own) {
			entries = append(entries, pkcs12.TrustStoreEntry{Cert: c, FriendlyName: alias(c.Raw)})
		}
		added, err := encoder.EncodeTrustStoreEntries(entries, password)
		return added, errors.Wrapf(err, "write a keystore")
	}
	return nil, errors.Newf(errors.Unsupported, "the keystore has an unknown format or password")
}
