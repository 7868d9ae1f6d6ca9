//go:build !keeper || !clientonly

package inner

var packedServer []byte
