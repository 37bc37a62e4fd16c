/** The lines of the report. */
final class Report {
    private final String only;
    private int passed;
    private int failed;

    Report(String only) {
        this.only = only;
    }

    boolean wanted(String name) {
        return name.contains(only);
    }

    synchronized void ok(String name) {
        passed++;
        System.out.println("ok " + name);
    }

    synchronized void notOk(String name, String why) {
        failed++;
        System.out.println("not ok " + name + ": " + why.replaceAll("\\s+", " "));
    }

    synchronized void exit() {
        System.out.println("# " + passed + " ok, " + failed + " not ok");
        System.exit(failed > 0 || passed == 0 ? 1 : 0);
    }
}
