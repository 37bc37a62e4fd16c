package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// broker notes what it is handed.
type broker struct {
	sync.Mutex
	numbers []int
	topics  map[string]int
}

func (b *broker) take(topic string, payload []byte) error {
	b.Lock()
	defer b.Unlock()
	b.numbers = append(b.numbers, int(binary.BigEndian.Uint32(payload)))
	b.topics[topic]++
	return nil
}

// certificate writes a certificate for localhost that signs itself, and its key.
func certificate(t *testing.T) (certificateFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"},
		DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(folder, name)
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	return write("certificate.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", private)
}

// run gives a device its task and returns its result.
func run(t *testing.T, task map[string]any) map[string]any {
	t.Helper()
	orders, in := io.Pipe()
	out, words := io.Pipe()
	go func() {
		deviceMain(orders, words)
		words.Close()
	}()
	line, _ := json.Marshal(task)
	fmt.Fprintln(in, string(line))
	answers := bufio.NewScanner(out)
	for answers.Scan() {
		var word map[string]any
		if err := json.Unmarshal(answers.Bytes(), &word); err != nil {
			t.Fatal(err)
		}
		switch word["event"] {
		case "ready":
			fmt.Fprintln(in, "go")
		case "finished":
			in.Close()
		default:
			return word
		}
	}
	t.Fatal("no result")
	return nil
}

func TestMessagesReachTheBrokerOnce(t *testing.T) {
	certificateFile, keyFile := certificate(t)
	for _, scheme := range []string{"coap", "coaps"} {
		for _, role := range []string{"publisher", "connect-publish"} {
			t.Run(scheme+" "+role, func(t *testing.T) {
				got := &broker{topics: map[string]int{}}
				g, err := startGateway(scheme+"://127.0.0.1:0", certificateFile, keyFile, got.take)
				if err != nil {
					t.Fatal(err)
				}
				defer g.stop()
				result := run(t, map[string]any{
					"role": role, "url": fmt.Sprintf("%s://127.0.0.1:%d", scheme, g.port),
					"server_name": "localhost", "authority": certificateFile, "credentials": "none",
					"resumption": true, "qos": 1, "payload_bytes": 100, "messages": 3, "connections": 2,
					"topics": 2, "interval_ns": 1_000_000, "time_limit_ms": 20_000,
				})
				if result["event"] != "result" {
					t.Fatal(result)
				}
				wanted := []int{0, 1, 2}
				if role == "connect-publish" {
					wanted = []int{0, 1, 2, 3, 4, 5}
					for _, name := range []string{"connect_ns", "sent_after_ns", "started_ns"} {
						if values, _ := result[name].([]any); len(values) != 2 {
							t.Fatalf("%s: %v", name, result[name])
						}
					}
				}
				got.Lock()
				defer got.Unlock()
				slices.Sort(got.numbers)
				if !slices.Equal(got.numbers, wanted) || len(got.topics) != 2 || got.topics["lab/0"] == 0 {
					t.Fatal(got.numbers, got.topics)
				}
			})
		}
	}
}

func TestWhatADeviceCannotDoItSays(t *testing.T) {
	task := func(name string, value any) map[string]any {
		task := map[string]any{
			"role": "publisher", "url": "coap://127.0.0.1:1", "qos": 1, "payload_bytes": 12, "topics": 1,
			"credentials": "none", "time_limit_ms": 1000,
		}
		task[name] = value
		return task
	}
	for wanted, task := range map[string]map[string]any{
		"QoS 1":                task("qos", 0),
		"credentials":          task("credentials", map[string]any{"password": "x"}),
		"room for their stamp": task("payload_bytes", 11),
		"not an URL of CoAP":   task("url", "mqtt://127.0.0.1:1"),
		"authority":            task("url", "coaps://127.0.0.1:1"),
		`no role "subscriber"`: task("role", "subscriber"),
	} {
		result := run(t, task)
		reason, _ := result["reason"].(string)
		if result["event"] != "failed" || !strings.Contains(reason, wanted) {
			t.Errorf("%s: %v", wanted, result)
		}
	}
}

func TestABrokerThatFailsIsNoSuccess(t *testing.T) {
	refuse := func(string, []byte) error { return fmt.Errorf("full") }
	g, err := startGateway("coap://127.0.0.1:0", "", "", refuse)
	if err != nil {
		t.Fatal(err)
	}
	defer g.stop()
	result := run(t, map[string]any{
		"role": "connect-publish", "url": fmt.Sprintf("coap://127.0.0.1:%d", g.port), "credentials": "none",
		"qos": 1, "payload_bytes": 12, "messages": 1, "connections": 1, "topics": 1, "time_limit_ms": 20_000,
	})
	if reason, _ := result["reason"].(string); !strings.Contains(reason, "BadGateway") {
		t.Fatal(result)
	}
}
